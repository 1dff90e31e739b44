//! Finding the NPU, or the reason why there is none, on trees of files that look like sysfs.
// What tests share is test code too.
#![allow(clippy::unwrap_used)]

mod fake;

use amdxdna_ioctl::Errno;
use amdxdna_ioctl::abi::request;
use amdxdna_ioctl::discover::{self, Generation, Problem};
use fake::Fake;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory that is removed again.
struct Tree(PathBuf);

impl Tree {
    fn new() -> Tree {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("amdxdna-discover-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let root = std::env::temp_dir().join(name);
        fs::create_dir_all(&root).unwrap();
        Tree(root)
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A PCI function, bound to a driver or not.
    fn pci(&self, address: &str, vendor: &str, device: &str, revision: &str, driver: Option<&str>) {
        let dir = format!("sys/devices/pci0000:00/{address}");
        self.file(&format!("{dir}/vendor"), &format!("{vendor}\n"));
        self.file(&format!("{dir}/device"), &format!("{device}\n"));
        self.file(&format!("{dir}/revision"), &format!("{revision}\n"));
        if let Some(driver) = driver {
            fs::create_dir_all(self.0.join("sys/bus/pci/drivers").join(driver)).unwrap();
            symlink(format!("../../../bus/pci/drivers/{driver}"), self.0.join(&dir).join("driver")).unwrap();
        }
        fs::create_dir_all(self.0.join("sys/bus/pci/devices")).unwrap();
        symlink(format!("../../../devices/pci0000:00/{address}"), self.0.join("sys/bus/pci/devices").join(address))
            .unwrap();
    }

    /// An accel node of a PCI function.
    fn accel(&self, number: u32, address: &str) {
        let class = self.0.join(format!("sys/class/accel/accel{number}"));
        fs::create_dir_all(&class).unwrap();
        symlink(format!("../../../devices/pci0000:00/{address}"), class.join("device")).unwrap();
        self.file(&format!("dev/accel/accel{number}"), "");
    }

    /// A Strix Point NPU, whatever else there is.
    fn strix(&self, number: u32) {
        self.pci("0000:c5:00.1", "0x1022", "0x17f0", "0x10", Some("amdxdna"));
        self.accel(number, "0000:c5:00.1");
    }

    fn find(&self) -> Result<Vec<discover::Node>, Problem> {
        discover::find_in(&self.0)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_node_is_chosen_by_driver_not_by_number() {
    let tree = Tree::new();
    tree.pci("0000:00:0b.0", "0x8086", "0x643e", "0x04", Some("intel_vpu"));
    tree.accel(0, "0000:00:0b.0");
    tree.strix(1);
    tree.file("sys/devices/pci0000:00/0000:c5:00.1/vbnv", "RyzenAI-npu4\n");
    tree.file("sys/devices/pci0000:00/0000:c5:00.1/fw_version", "1.1.2.64\n");
    tree.file("sys/devices/pci0000:00/0000:c5:00.1/device_type", "0\n");
    let nodes = tree.find().unwrap();
    let [node] = nodes.as_slice() else { panic!("{nodes:?}") };
    assert_eq!((node.name.as_str(), &node.path), ("accel1", &tree.0.join("dev/accel/accel1")));
    assert_eq!(node.generation(), Some(Generation::Npu4));
    assert!(node.generation().unwrap().is_xdna2());
    assert_eq!((node.vbnv.as_deref(), node.firmware.as_deref()), (Some("RyzenAI-npu4"), Some("1.1.2.64")));
    let pci = node.pci.as_ref().unwrap();
    assert_eq!((pci.address.as_str(), pci.vendor, pci.device, pci.revision), ("0000:c5:00.1", 0x1022, 0x17f0, 0x10));
}

#[test]
fn nodes_come_in_the_order_of_their_numbers() {
    let tree = Tree::new();
    tree.strix(10);
    tree.accel(9, "0000:c5:00.1");
    let names: Vec<String> = tree.find().unwrap().into_iter().map(|node| node.name).collect();
    assert_eq!(names, ["accel9", "accel10"]);
}

#[test]
fn no_hardware() {
    let tree = Tree::new();
    let problem = tree.find().unwrap_err();
    assert!(matches!(&problem, Problem::NoHardware { others } if others.is_empty()), "{problem}");
    // Another vendor's accelerator, and an AMD device that is no NPU.
    tree.pci("0000:00:0b.0", "0x8086", "0x643e", "0x04", Some("intel_vpu"));
    tree.accel(0, "0000:00:0b.0");
    tree.pci("0000:c4:00.0", "0x1022", "0x1502x", "0x00", None);
    tree.pci("0000:c4:00.1", "0x1022", "0x14e8", "0x00", None);
    let problem = tree.find().unwrap_err();
    assert!(matches!(&problem, Problem::NoHardware { others } if others.len() == 1), "{problem}");
    assert!(problem.to_string().contains("accel0 is intel_vpu's"), "{problem}");
}

#[test]
fn hardware_without_driver() {
    let tree = Tree::new();
    tree.pci("0000:c5:00.1", "0x1022", "0x17f0", "0x11", None);
    tree.file("proc/sys/kernel/osrelease", "6.8.0-31-generic\n");
    let problem = tree.find().unwrap_err();
    assert!(matches!(problem, Problem::NoDriver { module_loaded: false, .. }), "{problem}");
    let text = problem.to_string();
    for part in ["0000:c5:00.1", "Strix Halo", "modprobe amdxdna", "CONFIG_DRM_ACCEL_AMDXDNA", "6.8.0-31-generic"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // The module is there and has refused the device.
    fs::create_dir_all(tree.0.join("sys/module/amdxdna")).unwrap();
    let problem = tree.find().unwrap_err();
    assert!(matches!(problem, Problem::NoDriver { module_loaded: true, .. }), "{problem}");
    assert!(problem.to_string().contains("dmesg"), "{problem}");
}

#[test]
fn hardware_with_another_driver() {
    let tree = Tree::new();
    tree.pci("0000:c5:00.1", "0x1022", "0x1502", "0x00", Some("vfio-pci"));
    let problem = tree.find().unwrap_err();
    assert!(matches!(&problem, Problem::OtherDriver { driver, .. } if driver == "vfio-pci"), "{problem}");
}

#[test]
fn driver_without_node() {
    let tree = Tree::new();
    tree.pci("0000:c5:00.1", "0x1022", "0x17f0", "0x20", Some("amdxdna"));
    assert!(matches!(tree.find(), Err(Problem::NoNodeOfDriver { .. })));
    tree.accel(0, "0000:c5:00.1");
    fs::remove_file(tree.0.join("dev/accel/accel0")).unwrap();
    let problem = tree.find().unwrap_err();
    assert!(matches!(problem, Problem::NoNode { .. }), "{problem}");
    assert!(problem.to_string().contains("--device"), "{problem}");
}

#[test]
fn user_mode_queues_are_not_driven() {
    let tree = Tree::new();
    tree.pci("0000:c5:00.1", "0x1022", "0x17f3", "0x10", Some("amdxdna"));
    tree.accel(0, "0000:c5:00.1");
    assert!(matches!(tree.find(), Err(Problem::UserQueues { .. })));
    // The driver's word counts, not only the device id.
    let tree = Tree::new();
    tree.strix(0);
    tree.file("sys/devices/pci0000:00/0000:c5:00.1/device_type", "1\n");
    assert!(matches!(tree.find(), Err(Problem::UserQueues { .. })));
}

#[test]
fn no_permission_says_who_may() {
    let tree = Tree::new();
    tree.strix(0);
    let node = tree.0.join("dev/accel/accel0");
    fs::set_permissions(&node, fs::Permissions::from_mode(0o600)).unwrap();
    let fake = Fake::new();
    fake.fail(0, Errno::ACCESS, 1);
    let problem = discover::open_in(&tree.0, &fake).unwrap_err();
    let Problem::Permission { access: Some(access), .. } = &problem else { panic!("{problem}") };
    assert_eq!((access.mode, access.joining_helps), (0o600, false));
    assert!(!access.groups.is_empty());
    let text = problem.to_string();
    for part in [format!("{}:{} 0600", access.owner, access.group), "usermod".into(), "udev".into()] {
        assert!(text.contains(&part), "{part}: {text}");
    }
}

#[test]
fn a_refused_open_names_the_iommu() {
    let tree = Tree::new();
    tree.strix(0);
    for errno in [Errno::INVAL, Errno::NODEV, Errno::OPNOTSUPP, Errno::NOSPC] {
        let fake = Fake::new();
        fake.fail(0, errno, 1);
        let problem = discover::open_in(&tree.0, &fake).unwrap_err();
        assert!(matches!(problem, Problem::OpenRefused { errno: e, .. } if e == errno), "{problem}");
        assert!(problem.to_string().contains("IOMMU"), "{problem}");
    }
}

#[test]
fn what_a_node_turns_out_to_be() {
    let node = Path::new("/dev/accel/accel0");
    let fake = Fake::new();
    fake.with(|state| state.version = ("intel_vpu".into(), 1, 0));
    let problem = discover::open_node(&fake, node).unwrap_err();
    assert!(matches!(&problem, Problem::NotAmdxdna { driver: Some(d), .. } if d == "intel_vpu"), "{problem}");
    fake.fail(request::VERSION, Errno::NOTTY, 1);
    let problem = discover::open_node(&fake, node).unwrap_err();
    assert!(matches!(problem, Problem::NotAmdxdna { driver: None, .. }), "{problem}");
    fake.with(|state| state.version = ("amdxdna_accel_driver".into(), 2, 0));
    assert!(matches!(discover::open_node(&fake, node), Err(Problem::TooOld(_))));
    fake.with(|state| state.version.1 = 0);
    fake.fail(request::GET_INFO, Errno::TIME, 1);
    let problem = discover::open_node(&fake, node).unwrap_err();
    assert!(problem.to_string().contains("GET_INFO") && problem.to_string().contains("ETIME"), "{problem}");
    assert!(discover::open_node(&fake, node).is_ok());
}

#[test]
fn the_first_that_opens_is_taken() {
    let tree = Tree::new();
    tree.strix(0);
    tree.accel(1, "0000:c5:00.1");
    let fake = Fake::new();
    fake.fail(0, Errno::NODEV, 1);
    let (node, device) = discover::open_in(&tree.0, &fake).unwrap();
    assert_eq!((node.name.as_str(), device.node()), ("accel1", node.path.as_path()));
}
