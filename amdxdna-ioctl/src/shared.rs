//! Buffer objects that commands name: held by whoever uses them, and who may touch them when.

use crate::bo::{Bo, BoKind};
use crate::device::Device;
use crate::error::{Error, Result};
use bytemuck::{AnyBitPattern, Pod};
use std::ops::{Bound as End, Deref, DerefMut, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a command does with a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// It only reads. The host may read meanwhile.
    Read,
    /// It writes, and may read. The host may do neither meanwhile.
    Write,
}

/// Who uses a buffer object now. Each has 16 bits of the word that counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    HostRead,
    HostWrite,
    DeviceRead,
    DeviceWrite,
}

const FIELD: u64 = 0xffff;

impl Use {
    fn shift(self) -> u32 {
        16 * self as u32
    }

    /// The users that this one cannot be beside. What commands do to each other is the queue's order, not ours.
    fn excludes(self) -> u64 {
        let of = |other: Use| FIELD << other.shift();
        match self {
            Use::HostRead => of(Use::HostWrite) | of(Use::DeviceWrite),
            Use::HostWrite => u64::MAX,
            Use::DeviceRead => of(Use::HostWrite),
            Use::DeviceWrite => of(Use::HostWrite) | of(Use::HostRead),
        }
    }
}

/// A buffer object that commands may name.
///
/// Its bytes are reached through [`SharedBo::read`] and [`SharedBo::write`] only, which refuse with
/// [`Error::InUse`] while a command that is in flight could be at the same memory. The rule is per buffer object: what
/// the host works on while a command runs has to be another one.
#[derive(Debug)]
pub struct SharedBo {
    bo: Bo,
    uses: AtomicU64,
}

impl SharedBo {
    /// Takes a BO that nobody else uses. Fill it first where that is possible: no look at its users is needed then.
    #[must_use]
    pub fn new(bo: Bo) -> Arc<SharedBo> {
        Arc::new(SharedBo { bo, uses: AtomicU64::new(0) })
    }

    /// The GEM handle.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.bo.handle()
    }

    /// Bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.bo.size()
    }

    /// What it is for.
    #[must_use]
    pub fn kind(&self) -> BoKind {
        self.bo.kind()
    }

    /// The device that it is on.
    #[must_use]
    pub fn device(&self) -> &Arc<Device> {
        self.bo.device()
    }

    /// Part of it as an argument of commands.
    ///
    /// # Errors
    /// [`Error::Range`].
    pub fn view(self: &Arc<Self>, range: impl RangeBounds<usize>, access: Access) -> Result<View> {
        let start = match range.start_bound() {
            End::Included(&start) => start,
            End::Excluded(&before) => before.saturating_add(1),
            End::Unbounded => 0,
        };
        let end = match range.end_bound() {
            End::Included(&last) => last.saturating_add(1),
            End::Excluded(&end) => end,
            End::Unbounded => self.size(),
        };
        if start > end || end > self.size() {
            return Err(Error::Range { start, end, size: self.size() });
        }
        Ok(View { bo: Arc::clone(self), start, bytes: end - start, access })
    }

    /// The bytes, to read. [`SharedBo::flush`] first what a command wrote.
    ///
    /// # Errors
    /// [`Error::InUse`].
    pub fn read(&self) -> Result<HostRead<'_>> {
        self.take(Use::HostRead)?;
        Ok(HostRead(self))
    }

    /// The bytes, to write. [`SharedBo::flush`] afterwards what a command is to read.
    ///
    /// # Errors
    /// [`Error::InUse`].
    pub fn write(&self) -> Result<HostWrite<'_>> {
        self.take(Use::HostWrite)?;
        Ok(HostWrite(self))
    }

    /// Writes the cache lines of a range of bytes back to memory and drops them from the cache, as [`Bo::flush`] does.
    ///
    /// # Errors
    /// [`Error::Range`], [`Error::Forked`].
    pub fn flush(&self, range: impl RangeBounds<usize>) -> Result<()> {
        self.bo.flush(range)
    }

    /// Whether a command that is in flight names it.
    #[must_use]
    pub fn is_in_flight(&self) -> bool {
        let device = FIELD << Use::DeviceRead.shift() | FIELD << Use::DeviceWrite.shift();
        self.uses.load(Ordering::Acquire) & device != 0
    }

    pub(crate) fn address(&self) -> u64 {
        self.bo.address()
    }

    /// Counts a user, unless another is in its way.
    pub(crate) fn take(&self, user: Use) -> Result<()> {
        let count = |word: u64| {
            let full = word >> user.shift() & FIELD == FIELD;
            (word & user.excludes() == 0 && !full).then(|| word + (1 << user.shift()))
        };
        match self.uses.fetch_update(Ordering::AcqRel, Ordering::Acquire, count) {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::InUse { handle: self.handle() }),
        }
    }

    /// Takes back what [`SharedBo::take`] counted.
    pub(crate) fn give(&self, user: Use) {
        self.uses.fetch_sub(1 << user.shift(), Ordering::AcqRel);
    }
}

/// The bytes of a [`SharedBo`] while the host reads them.
#[derive(Debug)]
pub struct HostRead<'a>(&'a SharedBo);

impl HostRead<'_> {
    /// As elements of `T`, as many as fit.
    #[must_use]
    pub fn slice<T: AnyBitPattern>(&self) -> &[T] {
        self.0.bo.slice()
    }
}

impl Deref for HostRead<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.bo.bytes()
    }
}

impl Drop for HostRead<'_> {
    fn drop(&mut self) {
        self.0.give(Use::HostRead);
    }
}

/// The bytes of a [`SharedBo`] while the host writes them.
#[derive(Debug)]
pub struct HostWrite<'a>(&'a SharedBo);

impl HostWrite<'_> {
    /// As elements of `T`, as many as fit.
    #[must_use]
    pub fn slice<T: Pod>(&mut self) -> &mut [T] {
        let whole = self.len() - self.len().checked_rem(size_of::<T>()).unwrap_or(0);
        bytemuck::cast_slice_mut(&mut self[..whole])
    }
}

impl Deref for HostWrite<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.bo.bytes()
    }
}

impl DerefMut for HostWrite<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is that long and lives as long as the BO. A `HostWrite` is the only user of the BO's
        // memory: `take` refuses it beside any other and any other beside it, and the BO is reachable in no other way.
        unsafe { std::slice::from_raw_parts_mut(self.0.bo.as_ptr().as_ptr(), self.0.bo.size()) }
    }
}

impl Drop for HostWrite<'_> {
    fn drop(&mut self) {
        self.0.give(Use::HostWrite);
    }
}

/// Part of a [`SharedBo`] as an argument of commands: the only way in which an address gets into a packet of a
/// [`Bound`](crate::Bound). It keeps the buffer alive.
#[derive(Clone, Debug)]
pub struct View {
    bo: Arc<SharedBo>,
    start: usize,
    bytes: usize,
    access: Access,
}

impl View {
    /// The buffer that it is part of.
    #[must_use]
    pub fn bo(&self) -> &Arc<SharedBo> {
        &self.bo
    }

    /// Bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.bytes
    }

    /// What a command may do with it.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    pub(crate) fn address(&self) -> u64 {
        self.bo.address() + self.start as u64
    }

    pub(crate) fn device_use(&self) -> Use {
        match self.access {
            Access::Read => Use::DeviceRead,
            Access::Write => Use::DeviceWrite,
        }
    }
}
