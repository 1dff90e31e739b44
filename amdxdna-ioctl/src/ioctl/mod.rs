//! The ioctls as functions on a [`Door`]: one a request, untyped as to who owns what. All are safe but EXEC_CMD, which
//! sets the device on memory by address.
//!
//! Each says since which minor of the driver it exists, which errnos it returns and whether it blocks. `EINTR` is
//! retried here, except where said otherwise. Handles are plain numbers: closing, and in which order, is the caller's
//! business (the types above these functions do it).

mod core;
mod driver;
mod query;

pub use self::core::*;
pub use driver::*;
pub use query::*;

use crate::abi::request;
use crate::door::{Door, Errno};
use crate::error::IoctlError;
use bytemuck::Pod;

/// Issues one request, again as long as a signal interrupts it.
///
/// # Safety
/// As of [`Door::ioctl`]: pointers inside `argument` must be valid for what the request does with them.
#[allow(unsafe_code)]
unsafe fn call<T: Pod>(
    door: &dyn Door,
    request: u32,
    argument: &mut T,
    asked: impl FnOnce() -> String,
) -> Result<(), IoctlError> {
    debug_assert_eq!(size_of::<T>(), request::argument_size(request));
    loop {
        // SAFETY: the caller's promise, passed on.
        match unsafe { door.ioctl(request, bytemuck::bytes_of_mut(argument)) } {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(IoctlError::new(request, asked(), errno)),
        }
    }
}

/// The address of something the driver reads or writes, as it stands in an argument.
fn address<T: ?Sized>(of: *const T) -> u64 {
    of.cast::<u8>().expose_provenance() as u64
}
