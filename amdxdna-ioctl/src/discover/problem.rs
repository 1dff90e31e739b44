//! Why there is no NPU to be used.

use super::{Access, PciDevice};
use crate::door::Errno;
use crate::error::{Error, open_remedy, show};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// A way in which finding or opening the NPU can fail. The message says what is the matter, and what can be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// No PCI device is an NPU of AMD's.
    #[error(
        "no NPU: no PCI device of vendor 1022 is one (device ids 1502, 17f0){}. Needed is a Ryzen AI processor; if this \
         is one, the NPU (IPU) may be switched off in the firmware setup",
        list(others)
    )]
    NoHardware {
        /// Accel nodes of other drivers.
        others: Vec<(PathBuf, Option<String>)>,
    },
    /// The PCI device is there, and nothing drives it.
    #[error("{} and no driver bound: {}", found(device), no_driver(*module_loaded, kernel.as_deref()))]
    NoDriver {
        /// The NPU.
        device: PciDevice,
        /// The module is there, so it has refused the device.
        module_loaded: bool,
        /// The kernel's release.
        kernel: Option<String>,
    },
    /// The PCI device is there, and something else drives it.
    #[error(
        "{}, but the driver {driver:?} has it (passed through to a virtual machine?): unbind that and bind amdxdna: \
         modprobe amdxdna; echo {} | sudo tee /sys/bus/pci/drivers/amdxdna/bind", found(device), device.address
    )]
    OtherDriver {
        /// The NPU.
        device: PciDevice,
        /// Who has it.
        driver: String,
    },
    /// amdxdna has the device and there is no accel class device.
    #[error(
        "{} and amdxdna bound, but there is no accel device: the driver is the old out-of-tree one, or a kernel without \
         CONFIG_DRM_ACCEL; see the kernel log (sudo dmesg)",
        found(device)
    )]
    NoNodeOfDriver {
        /// The NPU.
        device: PciDevice,
    },
    /// sysfs knows the device, `/dev` does not have it.
    #[error(
        "the driver is there, but {} is not: udev has not made it, or this is a container without it (podman, docker: \
         --device {})", node.display(), node.display()
    )]
    NoNode {
        /// What should be there.
        node: PathBuf,
    },
    /// An AIE4 part.
    #[error("{} is an NPU with user-mode queues (AIE4), which this program does not drive", node.display())]
    UserQueues {
        /// The node.
        node: PathBuf,
    },
    /// The node may not be opened by this user.
    #[error("no permission to open {}{}", node.display(), permission(access.as_deref()))]
    Permission {
        /// The node.
        node: PathBuf,
        /// Who may, and who asks.
        access: Option<Box<Access>>,
    },
    /// The driver refused to open its node.
    #[error("{} could not be opened, {}: {}", node.display(), show(*errno), open_remedy(*errno))]
    OpenRefused {
        /// The node.
        node: PathBuf,
        /// What `open(2)` said.
        errno: Errno,
    },
    /// The node is another driver's.
    #[error(
        "{} belongs to {}, not to amdxdna: leave the node out to have the right one found, or give another",
        node.display(), driver.as_deref().unwrap_or("no DRM driver")
    )]
    NotAmdxdna {
        /// The node.
        node: PathBuf,
        /// Whose it is, if it says.
        driver: Option<String>,
    },
    /// The driver lacks what this program cannot do without.
    #[error(transparent)]
    TooOld(Error),
    /// The node opened, and then something else failed.
    #[error("{} was opened, but could not be used. {error}", node.display())]
    Unusable {
        /// The node.
        node: PathBuf,
        /// What failed.
        error: Error,
    },
}

impl Problem {
    /// What an error of [`Device::open`](crate::Device::open) says about the node.
    pub(super) fn of_open(path: &Path, error: Error) -> Problem {
        let node = path.to_owned();
        match error {
            Error::Open { errno: Errno::ACCESS | Errno::PERM, .. } => {
                Problem::Permission { access: Access::of(path).map(Box::new), node }
            }
            Error::Open { errno, .. } => Problem::OpenRefused { node, errno },
            Error::NotAmdxdna { driver, .. } => Problem::NotAmdxdna { node, driver: Some(driver) },
            Error::Ioctl(error)
                if error.request == crate::abi::request::VERSION
                    && matches!(error.errno, Errno::NOTTY | Errno::INVAL | Errno::NOSYS) =>
            {
                Problem::NotAmdxdna { node, driver: None }
            }
            error @ (Error::DriverMajor { .. } | Error::DriverMinor { .. } | Error::NoTimelines) => {
                Problem::TooOld(error)
            }
            error => Problem::Unusable { node, error },
        }
    }
}

fn found(device: &PciDevice) -> String {
    let product = device.generation().map_or("unknown", |generation| generation.product());
    format!(
        "an NPU is there (PCI {}, {:04x}:{:04x} revision {:02x}: {product})",
        device.address, device.vendor, device.device, device.revision
    )
}

fn no_driver(module_loaded: bool, kernel: Option<&str>) -> String {
    let mut text = String::new();
    if module_loaded {
        text.push_str(
            "amdxdna is loaded, so it has refused the device: sudo dmesg | grep -i amdxdna tells why (firmware missing in \
             /lib/firmware/amdnpu: install linux-firmware; firmware and driver of different protocols: update both; \
             IOMMU off: switch it on in the firmware setup)",
        );
    } else {
        text.push_str(
            "sudo modprobe amdxdna. If there is no such module, the kernel is older than 6.14 or built without \
             CONFIG_DRM_ACCEL_AMDXDNA",
        );
    }
    if let Some(kernel) = kernel {
        let _ = write!(text, " (this kernel: {kernel})");
    }
    text
}

fn list(others: &[(PathBuf, Option<String>)]) -> String {
    let names: Vec<String> = others
        .iter()
        .map(|(path, driver)| format!("{} is {}'s", path.display(), driver.as_deref().unwrap_or("nobody")))
        .collect();
    if names.is_empty() { String::new() } else { format!("; {}", names.join(", ")) }
}

fn permission(access: Option<&Access>) -> String {
    let rule = "a udev rule: echo 'SUBSYSTEM==\"accel\", GROUP=\"render\", MODE=\"0660\"' | sudo tee \
                /etc/udev/rules.d/70-accel.rules; sudo udevadm control --reload; sudo udevadm trigger";
    match access {
        None => format!(": add {rule}"),
        Some(access) if access.joining_helps => format!(
            ": {access}. Join the group: sudo usermod -aG {} {}, then log out and in again",
            access.group, access.user
        ),
        Some(access) => format!(
            ": {access}. Add {rule}; and join that group: sudo usermod -aG render {}, then log out and in again",
            access.user
        ),
    }
}
