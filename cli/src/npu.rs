//! The NPUs of this machine.

use crate::error::CliError;
use runtime::bundle::Bundle;
use runtime::reference::is_reference;
use std::path::PathBuf;

/// The first NPU that may be opened; else why there is none, and the remedy.
pub(crate) fn usable() -> Result<PathBuf, CliError> {
    Err(CliError::Device("no NPU was found".into()))
}

/// Whether a bundle's kernels run on the array, rather than on the software NPU only.
pub(crate) fn fits(bundle: &Bundle) -> Result<(), CliError> {
    if is_for_software(bundle)? {
        return Err(CliError::Device(
            "the bundle's kernels are for the software NPU only: export it with --kernels-from a bundle with real ones"
                .into(),
        ));
    }
    Ok(())
}

/// Whether the kernels are those that our own exporter writes.
pub(crate) fn is_for_software(bundle: &Bundle) -> Result<bool, CliError> {
    // A bundle may mix them; one that needs the software NPU needs it for all.
    for key in bundle.manifest.xclbins.keys() {
        let xclbin = bundle.xclbin(key).map_err(|source| CliError::Bundle { path: bundle.dir().to_owned(), source })?;
        if is_reference(&xclbin.pdi) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// `devices`: a line a node, or what keeps it from being used.
pub(crate) fn list() -> Result<(), CliError> {
    Err(CliError::Device("no NPU was found".into()))
}
