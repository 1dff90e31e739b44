//! The NPUs of this machine.

use crate::error::{CliError, one_line};
use crate::output::answer;
use amdxdna_ioctl::discover::{self, Problem};
use amdxdna_ioctl::{Device, KernelOpener};
use runtime::bundle::Bundle;
use runtime::reference::is_reference;
use std::path::Path;
use std::sync::Arc;

/// Opens the first NPU that lets itself be opened; else why there is none, and the remedy.
pub(crate) fn first() -> Result<Arc<Device>, CliError> {
    discover::open(&KernelOpener).map(|(_, device)| device).map_err(problem)
}

/// Opens the node; else why not, and the remedy.
pub(crate) fn open(node: &Path) -> Result<Arc<Device>, CliError> {
    discover::open_node(&KernelOpener, node).map_err(problem)
}

fn problem(problem: Problem) -> CliError {
    CliError::Device(problem.to_string())
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

/// Whether a bundle holds kernels that our own exporter writes. One that needs the software NPU needs it for all.
pub(crate) fn is_for_software(bundle: &Bundle) -> Result<bool, CliError> {
    any_kernel(bundle, true)
}

/// Whether a bundle holds kernels that say nothing to the software NPU.
pub(crate) fn has_opaque_kernels(bundle: &Bundle) -> Result<bool, CliError> {
    any_kernel(bundle, false)
}

fn any_kernel(bundle: &Bundle, ours: bool) -> Result<bool, CliError> {
    for key in bundle.manifest.xclbins.keys() {
        let xclbin = bundle.xclbin(key).map_err(|source| CliError::Bundle { path: bundle.dir().to_owned(), source })?;
        if is_reference(&xclbin.pdi) == ours {
            return Ok(true);
        }
    }
    Ok(false)
}

/// `devices`: a line a node, with what keeps it from being used; an error where no node is amdxdna's.
pub(crate) fn list() -> Result<(), CliError> {
    let nodes = discover::find().map_err(problem)?;
    let mut usable = false;
    for node in nodes {
        let product = node.generation().map_or("unknown NPU", |generation| generation.product());
        let state = match discover::open_node(&KernelOpener, &node.path) {
            Ok(device) => {
                usable = true;
                format!("can be opened, {} columns, driver {}", device.columns(), version(&device))
            }
            Err(problem) => one_line(&problem),
        };
        let firmware = node.firmware.as_deref().unwrap_or("unknown");
        answer(&format!("{}  {product}, firmware {firmware}: {state}\n", node.path.display()))?;
    }
    if usable { Ok(()) } else { Err(CliError::Device("no NPU can be used: see above".into())) }
}

fn version(device: &Device) -> String {
    let version = device.version();
    format!("{}.{}", version.major, version.minor)
}
