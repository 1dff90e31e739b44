//! Finding the NPU of a machine, or the reason why there is none to be used, and what to do about it.
//!
//! A node is chosen by its driver's name, never by its number: `/dev/accel/accel0` may well be another vendor's.

mod access;
mod problem;
mod sysfs;

pub use access::Access;
pub use problem::Problem;
pub use sysfs::{Generation, Node, PciDevice};

use crate::device::Device;
use crate::door::Opener;
use std::path::Path;
use std::sync::Arc;

/// The name of the driver's kernel module, which sysfs shows. (VERSION says
/// [`DRIVER_NAME`](crate::abi::DRIVER_NAME).)
pub const MODULE: &str = "amdxdna";

/// The nodes of this machine that amdxdna drives, lowest number first; at least one.
///
/// # Errors
/// [`Problem`]: why there is none.
pub fn find() -> Result<Vec<Node>, Problem> {
    find_in(Path::new("/"))
}

/// As [`find`], with `sys` and `dev` taken from under `root`.
///
/// # Errors
/// [`Problem`]: why there is none.
pub fn find_in(root: &Path) -> Result<Vec<Node>, Problem> {
    let nodes = sysfs::nodes(root);
    let (ours, others): (Vec<Node>, Vec<Node>) =
        nodes.into_iter().partition(|node| node.driver.as_deref() == Some(MODULE));
    if ours.is_empty() {
        return Err(why_none(root, others));
    }
    let (usable, newer): (Vec<Node>, Vec<Node>) =
        ours.into_iter().partition(|node| node.generation() != Some(Generation::UserQueues));
    if let (true, Some(node)) = (usable.is_empty(), newer.into_iter().next()) {
        return Err(Problem::UserQueues { node: node.path });
    }
    // A node that sysfs has and /dev has not (a container) only matters if no other is there.
    if usable.iter().all(|node| !node.path.exists())
        && let Some(node) = usable.first()
    {
        return Err(Problem::NoNode { node: node.path.clone() });
    }
    Ok(usable)
}

/// No node is amdxdna's: what there is instead.
fn why_none(root: &Path, others: Vec<Node>) -> Problem {
    let devices = sysfs::pci_devices(root);
    let kernel = sysfs::kernel_release(root);
    let npus: Vec<PciDevice> = devices.into_iter().filter(|device| device.generation().is_some()).collect();
    if let Some(device) = npus.iter().find(|device| device.driver.as_deref() == Some(MODULE)) {
        return Problem::NoNodeOfDriver { device: device.clone() };
    }
    if let Some(device) = npus.into_iter().next() {
        let module_loaded = sysfs::module_loaded(root);
        return match &device.driver {
            Some(driver) => Problem::OtherDriver { driver: driver.clone(), device },
            None => Problem::NoDriver { device, module_loaded, kernel },
        };
    }
    Problem::NoHardware { others: others.into_iter().map(|node| (node.path, node.driver)).collect() }
}

/// Finds and opens the first NPU that lets itself be opened.
///
/// # Errors
/// [`Problem`] of the first one that did not, or of [`find`].
pub fn open(opener: &dyn Opener) -> Result<(Node, Arc<Device>), Problem> {
    open_in(Path::new("/"), opener)
}

/// As [`open`], with `sys` and `dev` taken from under `root`.
///
/// # Errors
/// [`Problem`] of the first one that did not open, or of [`find_in`].
pub fn open_in(root: &Path, opener: &dyn Opener) -> Result<(Node, Arc<Device>), Problem> {
    let mut first = None;
    for node in find_in(root)? {
        match open_node(opener, &node.path) {
            Ok(device) => return Ok((node, device)),
            Err(problem) => {
                first.get_or_insert(problem);
            }
        }
    }
    // `find_in` gives at least one node.
    Err(first.unwrap_or(Problem::NoHardware { others: Vec::new() }))
}

/// Opens a node that was given by its path, and says what is wrong with it if that fails.
///
/// # Errors
/// [`Problem`].
pub fn open_node(opener: &dyn Opener, path: &Path) -> Result<Arc<Device>, Problem> {
    Device::open(opener, path).map_err(|error| Problem::of_open(path, error))
}
