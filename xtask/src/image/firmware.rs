//! Firmware for an image: the files that its modules may ask for, out of linux-firmware's directory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// What the driver loads into NPUs of the kinds that this project knows.
const NPU: [&str; 4] =
    ["amdnpu/17f0_10/npu.sbin", "amdnpu/17f0_10/npu_7.sbin", "amdnpu/17f0_11/npu.sbin", "amdnpu/17f0_11/npu_7.sbin"];
/// The virtual security processor takes any image; the driver only wants a file that is there.
static EMPTY: [u8; 65536] = [0; 65536];
/// As distributions pack it; the kernel unpacks these.
const PACKED: [&str; 3] = ["", ".xz", ".zst"];

/// Files by their names below `/lib/firmware`.
#[derive(Debug)]
pub(super) struct Firmware {
    pub(super) files: BTreeMap<String, Vec<u8>>,
    /// Whether a real NPU's is among them.
    pub(super) is_real: bool,
}

impl Firmware {
    /// What of `wanted` is in `directory`; stand-ins for the virtual NPU where there is none.
    pub(super) fn collect(wanted: &BTreeSet<&str>, directory: Option<&Path>) -> Result<Firmware, String> {
        let mut files = BTreeMap::new();
        if let Some(directory) = directory {
            for name in wanted {
                for ending in PACKED {
                    let path = directory.join(format!("{name}{ending}"));
                    match fs::read(&path) {
                        Ok(bytes) => {
                            files.insert(format!("{name}{ending}"), bytes);
                            break;
                        }
                        Err(e) if e.kind() == ErrorKind::NotFound => {}
                        Err(e) => return Err(format!("read {}: {e}", path.display())),
                    }
                }
            }
        }
        let is_real = files.keys().any(|name| NPU.iter().any(|npu| name.starts_with(npu)));
        match (directory, is_real) {
            (Some(directory), false) => Err(format!(
                "no firmware of an NPU below {}: none of {}, packed or not",
                directory.display(),
                NPU.join(", ")
            )),
            (None, _) => {
                files.extend(NPU.iter().map(|name| ((*name).to_owned(), EMPTY.to_vec())));
                Ok(Firmware { files, is_real })
            }
            _ => Ok(Firmware { files, is_real }),
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.files.values().map(|bytes| bytes.len() as u64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_firmware_goes_in_as_it_is_and_none_is_said() {
        let home = std::env::temp_dir().join(format!("qwen35-firmware-{}", std::process::id()));
        let wanted = BTreeSet::from(["amdnpu/17f0_10/npu.sbin", "rtl_nic/a.fw", "rtl_nic/b.fw"]);
        fs::create_dir_all(home.join("rtl_nic")).unwrap();
        fs::create_dir_all(home.join("amdnpu/17f0_10")).unwrap();
        fs::write(home.join("rtl_nic/a.fw"), "a").unwrap();
        assert!(Firmware::collect(&wanted, Some(&home)).is_err_and(|why| why.contains("amdnpu/17f0_10/npu.sbin")));
        fs::write(home.join("amdnpu/17f0_10/npu.sbin.zst"), "packed").unwrap();
        let found = Firmware::collect(&wanted, Some(&home));
        fs::remove_dir_all(&home).unwrap();
        let found = found.unwrap();
        assert!(found.is_real);
        assert_eq!(found.files.keys().collect::<Vec<_>>(), ["amdnpu/17f0_10/npu.sbin.zst", "rtl_nic/a.fw"]);
        let none = Firmware::collect(&wanted, None).unwrap();
        assert!(!none.is_real && none.files.len() == 4);
    }
}
