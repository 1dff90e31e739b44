//! From a request word to a handler (`drm_ioctl.c`).

use std::sync::atomic::Ordering;

use amdxdna_ioctl::Errno;
use amdxdna_ioctl::abi::{self, drm, request};
use bytemuck::Pod;

use super::{Client, core, locked};

/// The driver reads the argument (`_IOC_WRITE`).
const READS: u32 = 1 << 30;
/// The driver writes the argument (`_IOC_READ`).
const WRITES: u32 = 1 << 31;

/// One call on its way to its handler.
struct Call<'a> {
    /// The caller's request word, whose size and directions count.
    asked: u32,
    argument: &'a mut [u8],
}

impl Call<'_> {
    /// Reads the argument as `T`, a shorter one extended with zeroes and a longer one cut; runs the handler; writes
    /// the argument back whatever the handler said.
    fn run<T: Pod>(self, known: u32, handler: impl FnOnce(&mut T) -> Result<(), Errno>) -> Result<(), Errno> {
        let mut value = T::zeroed();
        let both = self.asked & known;
        let n = self.argument.len().min(size_of::<T>());
        if both & READS != 0 {
            bytemuck::bytes_of_mut(&mut value)[..n].copy_from_slice(&self.argument[..n]);
        }
        let result = handler(&mut value);
        if both & WRITES != 0 {
            self.argument[..n].copy_from_slice(&bytemuck::bytes_of(&value)[..n]);
        }
        result
    }
}

/// The request word that the driver knows under the number of `asked`, which alone says what is meant.
pub(crate) fn known(asked: u32) -> Option<u32> {
    const ALL: &[u32] = &[
        request::CREATE_HWCTX,
        request::DESTROY_HWCTX,
        request::CONFIG_HWCTX,
        request::CREATE_BO,
        request::GET_BO_INFO,
        request::SYNC_BO,
        request::EXEC_CMD,
        request::GET_INFO,
        request::SET_STATE,
        request::WAIT_CMD,
        request::GET_ARRAY,
        request::VERSION,
        request::GEM_CLOSE,
        request::GET_CAP,
        request::PRIME_HANDLE_TO_FD,
        request::PRIME_FD_TO_HANDLE,
        request::SYNCOBJ_CREATE,
        request::SYNCOBJ_DESTROY,
        request::SYNCOBJ_HANDLE_TO_FD,
        request::SYNCOBJ_FD_TO_HANDLE,
        request::SYNCOBJ_WAIT,
        request::SYNCOBJ_TIMELINE_WAIT,
        request::SYNCOBJ_QUERY,
        request::SYNCOBJ_TRANSFER,
        request::SYNCOBJ_TIMELINE_SIGNAL,
        request::SYNCOBJ_EVENTFD,
        request::SET_CLIENT_NAME,
    ];
    ALL.iter().copied().find(|word| word & 0xff == asked & 0xff)
}

impl Client {
    /// An ioctl.
    ///
    /// # Errors
    /// `ENODEV` when the device is gone, `EINVAL` for a number that nobody handles, or what the handler says.
    pub(super) fn ioctl(&self, asked: u32, argument: &mut [u8]) -> Result<(), Errno> {
        let Some(word) = known(asked) else {
            self.device.stats.update(|counts| *counts.ioctls.entry("unknown").or_default() += 1);
            return Err(Errno::INVAL);
        };
        let name = request::name(word).unwrap_or("unknown");
        self.device.stats.update(|counts| *counts.ioctls.entry(name).or_default() += 1);
        if self.device.unplugged.load(Ordering::Relaxed) {
            return Err(Errno::NODEV);
        }
        let call = Call { asked, argument };
        match word {
            request::CREATE_HWCTX => call.run(word, |a: &mut abi::CreateHwctx| self.create_hwctx(a)),
            request::DESTROY_HWCTX => call.run(word, |a: &mut abi::DestroyHwctx| self.destroy_hwctx(a)),
            request::CONFIG_HWCTX => call.run(word, |a: &mut abi::ConfigHwctx| self.config_hwctx(a)),
            request::CREATE_BO => call.run(word, |a: &mut abi::CreateBo| self.create_bo(a)),
            request::GET_BO_INFO => call.run(word, |a: &mut abi::GetBoInfo| self.get_bo_info(a)),
            request::SYNC_BO => call.run(word, |a: &mut abi::SyncBo| self.sync_bo(a)),
            request::EXEC_CMD => call.run(word, |a: &mut abi::ExecCmd| self.exec_cmd(a)),
            request::GET_INFO => call.run(word, |a: &mut abi::GetInfo| self.get_info(a)),
            request::GET_ARRAY => call.run(word, |a: &mut abi::GetArray| self.get_array(a)),
            request::SET_STATE => call.run(word, |a: &mut abi::SetState| {
                // DRM_ROOT_ONLY is checked before the handler runs.
                if locked(&self.device.faults).privileged { self.set_state(a) } else { Err(Errno::ACCESS) }
            }),
            // No handler on AIE2.
            request::WAIT_CMD => call.run(word, |_: &mut abi::WaitCmd| Err(Errno::OPNOTSUPP)),
            request::VERSION => call.run(word, |a: &mut drm::Version| self.version(a)),
            request::GET_CAP => call.run(word, |a: &mut drm::GetCap| core::get_cap(a)),
            request::SET_CLIENT_NAME => call.run(word, |a: &mut drm::SetClientName| core::set_client_name(a)),
            request::GEM_CLOSE => call.run(word, |a: &mut drm::GemClose| self.gem_close(a)),
            request::PRIME_HANDLE_TO_FD => call.run(word, |a: &mut drm::PrimeHandle| self.prime_handle_to_fd(a)),
            request::PRIME_FD_TO_HANDLE => call.run(word, |a: &mut drm::PrimeHandle| self.prime_fd_to_handle(a)),
            request::SYNCOBJ_CREATE => call.run(word, |a: &mut drm::SyncobjCreate| self.syncobj_create(a)),
            request::SYNCOBJ_DESTROY => call.run(word, |a: &mut drm::SyncobjDestroy| self.syncobj_destroy(a)),
            request::SYNCOBJ_HANDLE_TO_FD => call.run(word, |a: &mut drm::SyncobjHandle| self.syncobj_handle_to_fd(a)),
            request::SYNCOBJ_FD_TO_HANDLE => call.run(word, |a: &mut drm::SyncobjHandle| self.syncobj_fd_to_handle(a)),
            request::SYNCOBJ_WAIT => call.run(word, |a: &mut drm::SyncobjWait| self.syncobj_wait(a)),
            request::SYNCOBJ_TIMELINE_WAIT => {
                call.run(word, |a: &mut drm::SyncobjTimelineWait| self.syncobj_timeline_wait(a))
            }
            request::SYNCOBJ_QUERY => call.run(word, |a: &mut drm::SyncobjTimelineArray| self.syncobj_query(a)),
            request::SYNCOBJ_TRANSFER => call.run(word, |a: &mut drm::SyncobjTransfer| self.syncobj_transfer(a)),
            request::SYNCOBJ_TIMELINE_SIGNAL => {
                call.run(word, |a: &mut drm::SyncobjTimelineArray| self.syncobj_timeline_signal(a))
            }
            request::SYNCOBJ_EVENTFD => call.run(word, |a: &mut drm::SyncobjEventfd| self.syncobj_eventfd(a)),
            _ => Err(Errno::INVAL),
        }
    }
}
