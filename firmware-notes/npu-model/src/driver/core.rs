//! The DRM core's own ioctls (`drm_ioctl.c`, `drm_gem.c`).

use amdxdna_ioctl::Errno;
use amdxdna_ioctl::abi::{DRIVER_MAJOR, DRIVER_NAME, drm};

use super::{Client, locked};
use crate::front::{read_user, write_user};

/// `DRM_CAP_TIMESTAMP_MONOTONIC`.
const CAP_TIMESTAMP_MONOTONIC: u64 = 6;
/// `DRM_CLIENT_NAME_MAX_LEN`.
const CLIENT_NAME_MAX: u64 = 64;

/// Copies as much of a string as there is room for; the length comes back whole.
fn copy_field(text: &str, len: &mut u64, addr: u64) -> Result<(), Errno> {
    let room = usize::try_from(*len).unwrap_or(usize::MAX).min(text.len());
    *len = text.len() as u64;
    if room != 0 && addr != 0 {
        write_user(addr, &text.as_bytes()[..room])?;
    }
    Ok(())
}

pub(super) fn get_cap(a: &mut drm::GetCap) -> Result<(), Errno> {
    a.value = match a.capability {
        CAP_TIMESTAMP_MONOTONIC | drm::cap::SYNCOBJ | drm::cap::SYNCOBJ_TIMELINE => 1,
        drm::cap::PRIME => drm::cap::PRIME_IMPORT | drm::cap::PRIME_EXPORT,
        _ => {
            a.value = 0;
            return Err(Errno::OPNOTSUPP);
        }
    };
    Ok(())
}

pub(super) fn set_client_name(a: &drm::SetClientName) -> Result<(), Errno> {
    if a.name_len == 0 {
        return Ok(());
    }
    if a.name_len > CLIENT_NAME_MAX {
        return Err(Errno::INVAL);
    }
    let mut name = vec![0; a.name_len as usize];
    read_user(a.name, &mut name)?;
    if name.iter().all(|byte| byte.is_ascii_graphic()) { Ok(()) } else { Err(Errno::INVAL) }
}

impl Client {
    pub(super) fn version(&self, a: &mut drm::Version) -> Result<(), Errno> {
        a.version_major = DRIVER_MAJOR;
        a.version_minor = self.device.config.driver.minor();
        a.version_patchlevel = 0;
        copy_field(DRIVER_NAME, &mut a.name_len, a.name)?;
        copy_field("0", &mut a.date_len, a.date)?;
        copy_field("AMD XDNA DRM implementation", &mut a.desc_len, a.desc)
    }

    pub(super) fn gem_close(&self, a: &drm::GemClose) -> Result<(), Errno> {
        // The last reference, and with it the memory, may go here: after the table's lock.
        let bo = locked(&self.buffers).remove(a.handle);
        bo.map(drop).ok_or(Errno::INVAL)
    }
}
