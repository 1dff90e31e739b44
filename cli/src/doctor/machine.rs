//! What the machine says without the device being opened.

use super::report::Findings;
use crate::error::one_line;
use amdxdna_ioctl::discover::{self, PciDevice, Problem};
use rustix::process::{Resource, getrlimit};
use std::fs;
use std::path::Path;

/// Descriptors that a run holds: the node, the fences of commands in flight, files and standard streams.
const DESCRIPTORS: u64 = 64;

/// The PCI device, its driver and its node.
pub(super) fn hardware(findings: &mut Findings) {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = if release.is_empty() { "unknown" } else { release.trim() };
    let nodes = match discover::find() {
        Ok(nodes) => nodes,
        // What follows says so, and what to do.
        Err(problem) => {
            findings.skip("hardware", &format!("no node to look at (kernel {release})"));
            if let Problem::NoDriver { device, module_loaded: true, .. } = &problem {
                firmware_files(findings, Path::new("/lib/firmware"), device);
            }
            return;
        }
    };
    for node in nodes {
        let product = node.generation().map_or("unknown NPU", |generation| generation.product());
        let place = node.pci.as_ref().map_or_else(
            || "no PCI device".to_owned(),
            |pci| format!("PCI {} {:04x}:{:04x} revision {:02x}", pci.address, pci.vendor, pci.device, pci.revision),
        );
        let firmware = node.firmware.as_deref().unwrap_or("unknown");
        let path = node.path.display();
        findings.ok("hardware", &format!("{path}: {product}, {place}, firmware {firmware}, kernel {release}"));
        if node.generation().is_some_and(|generation| !generation.is_xdna2()) {
            findings.warn(
                "hardware",
                &format!("{path} is no XDNA2 part: published bundles have kernels for XDNA2 alone"),
                "use a machine with Strix, Strix Halo or Krackan",
            );
        }
    }
}

/// Whether the files are there that the driver gives to the device; it does not take the device without.
fn firmware_files(findings: &mut Findings, root: &Path, device: &PciDevice) {
    let folder = format!("amdnpu/{:04x}_{:02x}", device.device, device.revision);
    let is_one = |name: &str| name.starts_with("npu") && name.contains(".sbin");
    let found = ["", "updates"].iter().any(|part| {
        let entries = fs::read_dir(root.join(part).join(&folder));
        entries.is_ok_and(|entries| entries.flatten().any(|entry| is_one(&entry.file_name().to_string_lossy())))
    });
    let folder = root.join(folder);
    if found {
        findings.ok("firmware", &format!("there are files in {}", folder.display()));
    } else {
        findings.warn(
            "firmware",
            &format!("{} holds no npu.sbin: without it the driver refuses the device", folder.display()),
            "install your distribution's linux-firmware with the files of AMD's NPUs, then load the driver anew: \
             sudo modprobe -r amdxdna; sudo modprobe amdxdna",
        );
    }
}

/// Limits as this process has them.
pub(super) fn limits(findings: &mut Findings) {
    let files = getrlimit(Resource::Nofile).current;
    let locked = getrlimit(Resource::Memlock).current;
    let shown = |limit: Option<u64>| limit.map_or_else(|| "no limit".to_owned(), |limit| limit.to_string());
    let text =
        format!("{} descriptors; {} bytes of locked memory, of which none is needed", shown(files), shown(locked));
    if files.is_some_and(|files| files < DESCRIPTORS) {
        let remedy = format!("raise it: ulimit -n {}, or LimitNOFILE= of the service", 16 * DESCRIPTORS);
        return findings.warn("limits", &text, &remedy);
    }
    match memory() {
        Some((total, free)) => {
            let gb = |bytes: u64| bytes as f64 / 1e9;
            findings.ok("limits", &format!("{text}; {:.1} of {:.1} GB of memory free", gb(free), gb(total)));
        }
        None => findings.ok("limits", &text),
    }
}

/// Bytes of memory, and those that can be had.
fn memory() -> Option<(u64, u64)> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
    };
    Some((field("MemTotal:")?, field("MemAvailable:")?))
}

/// The name of a process.
pub(crate) fn process(pid: i64) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm"));
    name.map_or_else(|_| "gone or not to be seen".to_owned(), |name| one_line(&name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::report::Verdict;

    #[test]
    fn missing_firmware_is_named_packed_firmware_is_found() {
        let root = std::env::temp_dir().join(format!("qwen35-firmware-{}", std::process::id()));
        let device =
            PciDevice { address: "0000:c5:00.1".into(), vendor: 0x1022, device: 0x17f0, revision: 0x11, driver: None };
        let look = || {
            let mut findings = Findings::default();
            firmware_files(&mut findings, &root, &device);
            findings.0.remove(0)
        };
        let missing = look();
        assert!(missing.verdict == Verdict::Warn && missing.text.contains("amdnpu/17f0_11"), "{missing:?}");
        fs::create_dir_all(root.join("amdnpu/17f0_10")).unwrap();
        fs::write(root.join("amdnpu/17f0_10/npu.sbin"), "of another part").unwrap();
        assert_eq!(look().verdict, Verdict::Warn);
        fs::create_dir_all(root.join("updates/amdnpu/17f0_11")).unwrap();
        fs::write(root.join("updates/amdnpu/17f0_11/npu_7.sbin.zst"), "packed").unwrap();
        assert_eq!(look().verdict, Verdict::Ok);
        fs::remove_dir_all(root).unwrap();
    }
}
