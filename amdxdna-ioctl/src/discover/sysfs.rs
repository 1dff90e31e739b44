//! What sysfs says: accel nodes, PCI devices, drivers.

use super::MODULE;
use crate::abi::device_type;
use std::fs;
use std::path::{Path, PathBuf};

/// Vendor AMD.
const VENDOR: u16 = 0x1022;

/// Which NPU it is (`npu1_regs.c`, `npu4_regs.c`, `npu5_regs.c`, `npu6_regs.c`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Generation {
    /// Phoenix, Hawk Point: XDNA, 6 contexts.
    Npu1,
    /// Early Strix silicon, which current drivers do not bind.
    Npu2,
    /// Strix Point: XDNA2.
    Npu4,
    /// Strix Halo: XDNA2.
    Npu5,
    /// Krackan: XDNA2.
    Npu6,
    /// An AIE4 part with user-mode queues, which this crate does not drive.
    UserQueues,
    /// A known device id with an unknown revision.
    Unknown,
}

impl Generation {
    fn of(vendor: u16, device: u16, revision: u8) -> Option<Self> {
        Some(match (vendor, device, revision) {
            (VENDOR, 0x1502, _) => Generation::Npu1,
            (VENDOR, 0x17f0, 0x00) => Generation::Npu2,
            (VENDOR, 0x17f0, 0x10) => Generation::Npu4,
            (VENDOR, 0x17f0, 0x11) => Generation::Npu5,
            (VENDOR, 0x17f0, 0x20) => Generation::Npu6,
            (VENDOR, 0x17f0, _) => Generation::Unknown,
            (VENDOR, 0x17f1..=0x17f3 | 0x1b0a..=0x1b0c, _) => Generation::UserQueues,
            _ => return None,
        })
    }

    /// The processors that have it.
    #[must_use]
    pub fn product(self) -> &'static str {
        match self {
            Generation::Npu1 => "Ryzen AI of Phoenix or Hawk Point (XDNA)",
            Generation::Npu2 => "Ryzen AI of early Strix silicon (XDNA2)",
            Generation::Npu4 => "Ryzen AI of Strix Point (XDNA2)",
            Generation::Npu5 => "Ryzen AI of Strix Halo (XDNA2)",
            Generation::Npu6 => "Ryzen AI of Krackan (XDNA2)",
            Generation::UserQueues => "Ryzen AI with user-mode queues (AIE4)",
            Generation::Unknown => "Ryzen AI of an unknown revision",
        }
    }

    /// An XDNA2 array (AIE2P), which kernels for `npu2` run on.
    #[must_use]
    pub fn is_xdna2(self) -> bool {
        matches!(self, Generation::Npu2 | Generation::Npu4 | Generation::Npu5 | Generation::Npu6)
    }
}

/// A PCI function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciDevice {
    /// Its address, `0000:c5:00.1`.
    pub address: String,
    /// Vendor id.
    pub vendor: u16,
    /// Device id.
    pub device: u16,
    /// Revision.
    pub revision: u8,
    /// The bound driver.
    pub driver: Option<String>,
}

impl PciDevice {
    /// Which NPU it is; `None` if it is none.
    #[must_use]
    pub fn generation(&self) -> Option<Generation> {
        Generation::of(self.vendor, self.device, self.revision)
    }

    fn read(directory: &Path) -> Option<PciDevice> {
        let address = fs::canonicalize(directory).ok()?.file_name()?.to_str()?.to_owned();
        Some(PciDevice {
            address,
            vendor: hex(directory, "vendor").and_then(|id| u16::try_from(id).ok())?,
            device: hex(directory, "device").and_then(|id| u16::try_from(id).ok())?,
            revision: hex(directory, "revision").and_then(|id| u8::try_from(id).ok()).unwrap_or(0),
            driver: driver(directory),
        })
    }
}

/// An accel node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// `accel0`.
    pub name: String,
    /// The device file, `/dev/accel/accel0`.
    pub path: PathBuf,
    /// The driver that sysfs names.
    pub driver: Option<String>,
    /// The PCI function behind it.
    pub pci: Option<PciDevice>,
    /// `vbnv` of the driver: a string to show, `RyzenAI-npu4`.
    pub vbnv: Option<String>,
    /// `fw_version` of the driver.
    pub firmware: Option<String>,
    /// `device_type` of the driver, one of [`device_type`].
    pub device_type: Option<i32>,
}

impl Node {
    /// Which NPU it is; `None` if that is not known.
    #[must_use]
    pub fn generation(&self) -> Option<Generation> {
        match self.device_type {
            Some(device_type::UMQ | device_type::PF) => Some(Generation::UserQueues),
            _ => self.pci.as_ref().and_then(PciDevice::generation),
        }
    }
}

/// All accel nodes, lowest number first, whoever drives them.
pub(super) fn nodes(root: &Path) -> Vec<Node> {
    let class = root.join("sys/class/accel");
    let mut numbers: Vec<u32> = names(&class)
        .iter()
        .filter_map(|name| name.strip_prefix("accel").and_then(|number| number.parse().ok()))
        .collect();
    numbers.sort_unstable();
    let node = |number: u32| {
        let name = format!("accel{number}");
        let device = class.join(&name).join("device");
        Node {
            path: root.join("dev/accel").join(&name),
            driver: driver(&device),
            pci: PciDevice::read(&device),
            vbnv: text(&device, "vbnv"),
            firmware: text(&device, "fw_version"),
            device_type: text(&device, "device_type").and_then(|number| number.parse().ok()),
            name,
        }
    };
    numbers.into_iter().map(node).collect()
}

/// All PCI functions of AMD's, by address.
pub(super) fn pci_devices(root: &Path) -> Vec<PciDevice> {
    let bus = root.join("sys/bus/pci/devices");
    let mut devices: Vec<PciDevice> = names(&bus)
        .iter()
        .filter_map(|name| PciDevice::read(&bus.join(name)))
        .filter(|device| device.vendor == VENDOR)
        .collect();
    devices.sort_by(|a, b| a.address.cmp(&b.address));
    devices
}

/// The driver's module is loaded, or built in.
pub(super) fn module_loaded(root: &Path) -> bool {
    root.join("sys/module").join(MODULE).exists() || root.join("sys/bus/pci/drivers").join(MODULE).exists()
}

/// The kernel's release, `6.14.0-37-generic`.
pub(super) fn kernel_release(root: &Path) -> Option<String> {
    text(&root.join("proc/sys/kernel"), "osrelease")
}

fn names(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}

fn driver(device: &Path) -> Option<String> {
    fs::read_link(device.join("driver")).ok()?.file_name()?.to_str().map(str::to_owned)
}

fn text(directory: &Path, name: &str) -> Option<String> {
    let text = fs::read_to_string(directory.join(name)).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

fn hex(directory: &Path, name: &str) -> Option<u32> {
    u32::from_str_radix(text(directory, name)?.strip_prefix("0x")?, 16).ok()
}
