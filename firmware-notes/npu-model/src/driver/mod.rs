//! The driver's rules: what each ioctl accepts and answers, in the order in which Linux 7.3.4 checks it.

mod bo;
mod buffers;
mod context;
mod core;
mod dispatch;
#[allow(unsafe_code)]
mod door;
mod exec;
mod fence;
mod handles;
mod hwctx;
mod info;
mod notes;
mod packet;
mod prime;
mod ranges;
#[cfg(feature = "supervise")]
#[allow(unsafe_code)]
mod remote;
mod space;
mod syncobj;
mod user_pages;

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use amdxdna_ioctl::{Door, Errno};

use self::bo::Bo;
pub(crate) use self::dispatch::known as known_request;
use self::fence::{Hub, Syncobj};
use self::handles::Handles;
use self::hwctx::Hwctx;
pub(crate) use self::notes::TABLE as NOTES;
use self::ranges::Ranges;
#[cfg(feature = "supervise")]
pub(crate) use self::remote::{Piece, Remote};
use self::space::Space;
use crate::config::{AddressMode, Config, Faults};
use crate::firmware::{Firmware, protocol_accepted};
use crate::front::{Memory, PAGE, Region, Store};
use crate::stats::Stats;
use crate::timing::Timeline;

/// First mmap offset that the DRM core gives out (`DRM_FILE_PAGE_OFFSET_START`).
const FIRST_MAP_OFFSET: u64 = 1 << 32;
/// Where the model's IOVAs and carve-out begin. A choice: real ones are anywhere.
const IOVA_BASE: u64 = 1 << 32;
const IOVA_SIZE: u64 = 1 << 46;
const CARVEOUT_BASE: u64 = 0x6000_0000;

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// State that all clients share.
#[derive(Debug, Default)]
struct Shared {
    /// Next mmap offset.
    next_offset: u64,
    /// Buffers by mmap offset.
    by_offset: BTreeMap<u64, Weak<Bo>>,
    /// Exported buffers by (device, inode) of the file that stands for the dma-buf.
    dma_bufs: HashMap<(u64, u64), Weak<Bo>>,
    /// Exported buffers of a store, and the files that stand for them. Kept for as long as the device: nothing tells when
    /// the last client's descriptor is closed.
    stand_ins: Vec<(OwnedFd, Arc<Bo>)>,
    /// Exported syncobjs, likewise. Kept for as long as the device: nothing tells when the last file is closed.
    syncobj_files: HashMap<(u64, u64), Arc<Syncobj>>,
    /// Contexts of all clients, oldest first.
    contexts: Vec<Weak<Hwctx>>,
    /// Clients.
    clients: Vec<Weak<Client>>,
    /// Last context id, where ids are device-wide.
    last_context_id: u32,
    power_mode: u8,
    force_preempt: u8,
    frame_boundary_preempt: u8,
}

/// The device, as its driver knows it.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) config: Config,
    pub(crate) stats: Arc<Stats>,
    pub(crate) faults: Arc<Mutex<Faults>>,
    pub(crate) firmware: Firmware,
    hub: Hub,
    shared: Mutex<Shared>,
    addresses: Arc<Mutex<Ranges>>,
    /// The driver's `dev_lock`: one management request at a time.
    dev_lock: Mutex<()>,
    /// The management channel is gone.
    management_dead: AtomicBool,
    unplugged: AtomicBool,
    /// When a command last went to the firmware or came back, of any context.
    last_activity: AtomicI64,
    /// Calls that came to where they might block.
    blocking_calls: AtomicU64,
    /// Bytes of user pages pinned.
    pinned: AtomicU64,
    /// Where all buffers are, if clients are other processes.
    store: Option<Store>,
}

impl Device {
    /// A device for this process.
    pub(crate) fn new(config: Config) -> Arc<Self> {
        Self::with_store(config, None)
    }

    /// With a store, a device for other processes.
    pub(crate) fn with_store(config: Config, store: Option<Store>) -> Arc<Self> {
        let stats = Arc::new(Stats::default());
        let faults = Arc::new(Mutex::new(config.faults.clone()));
        let firmware = Firmware::new(&config, Arc::clone(&stats), Arc::clone(&faults));
        let addresses = match config.mode {
            AddressMode::Carveout(bytes) => Ranges::new(CARVEOUT_BASE, bytes),
            AddressMode::Sva | AddressMode::Iova => Ranges::new(IOVA_BASE, IOVA_SIZE),
        };
        Arc::new(Self {
            config,
            stats,
            faults,
            firmware,
            hub: Hub::default(),
            shared: Mutex::new(Shared { next_offset: FIRST_MAP_OFFSET, ..Shared::default() }),
            addresses: Arc::new(Mutex::new(addresses)),
            dev_lock: Mutex::default(),
            management_dead: AtomicBool::new(false),
            unplugged: AtomicBool::new(false),
            last_activity: AtomicI64::new(0),
            blocking_calls: AtomicU64::new(0),
            pinned: AtomicU64::new(0),
            store,
        })
    }

    /// New pages for the buffer at an mmap offset.
    fn pages(&self, offset: u64, len: usize, window: Option<(&Arc<Region>, usize)>) -> Result<Memory, Errno> {
        match &self.store {
            Some(store) => Memory::stored(store, offset, len, window),
            None => Memory::new(len, window, self.config.coherent),
        }
    }

    /// Whether a buffer can have pages of its own.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where all pages have to be in the store: not modelled there.
    fn own_files(&self) -> Result<(), Errno> {
        if self.store.is_some() { Err(Errno::OPNOTSUPP) } else { Ok(()) }
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        locked(&self.shared)
    }

    /// Opens the node.
    ///
    /// # Errors
    /// The injected errno; `ENOENT` where probing would have failed, so that there is no node; `ENODEV` when unplugged.
    pub(crate) fn open(self: &Arc<Self>) -> Result<Arc<dyn Door>, Errno> {
        self.check_open()?;
        Ok(self.client())
    }

    fn check_open(&self) -> Result<(), Errno> {
        if let Some(errno) = locked(&self.faults).open {
            return Err(errno);
        }
        if !protocol_accepted(self.config.protocol) {
            return Err(Errno::NOENT);
        }
        if self.unplugged.load(Ordering::Relaxed) {
            return Err(Errno::NODEV);
        }
        Ok(())
    }

    /// A new client in this process.
    pub(crate) fn client(self: &Arc<Self>) -> Arc<dyn Door> {
        Arc::new(door::ModelDoor::new(self.new_client(i64::from(std::process::id()))))
    }

    fn new_client(self: &Arc<Self>, pid: i64) -> Arc<Client> {
        self.stats.update(|counts| counts.opens += 1);
        let space = Arc::new(Space::new(self.config.mode));
        let client = Arc::new(Client {
            device: Arc::clone(self),
            pid,
            space,
            buffers: Arc::default(),
            syncobjs: Mutex::default(),
            contexts: Mutex::default(),
            mappings: Mutex::default(),
        });
        self.shared().clients.push(Arc::downgrade(&client));
        client
    }

    /// Takes the device away: every ioctl fails from now on.
    pub(crate) fn unplug(&self) {
        self.unplugged.store(true, Ordering::Relaxed);
    }

    /// Suspends and resumes: contexts keep their handles and lose what is in the array.
    pub(crate) fn suspend(&self) {
        let _management = locked(&self.dev_lock);
        let contexts: Vec<_> = self.shared().contexts.iter().filter_map(Weak::upgrade).collect();
        for context in contexts {
            context.suspend();
        }
    }

    /// Contexts alive, of all clients.
    fn contexts(&self) -> Vec<Arc<Hwctx>> {
        let mut shared = self.shared();
        shared.contexts.retain(|context| context.strong_count() > 0);
        shared.contexts.iter().filter_map(Weak::upgrade).collect()
    }

    /// Whether this blocking call should be interrupted.
    fn interrupted(&self) -> bool {
        let number = self.blocking_calls.fetch_add(1, Ordering::Relaxed) + 1;
        locked(&self.faults).interrupt_every.is_some_and(|every| every != 0 && number.is_multiple_of(every))
    }

    /// How long somebody who waits for a command may sleep; `None`: it ends so soon that spinning is better.
    fn nap(&self) -> Option<Duration> {
        // Condvar timeouts of centuries overflow on some platforms; waking once an hour costs nothing.
        let for_long = Some(Duration::from_secs(3600));
        self.firmware.timeline().filter(|timeline| timeline.is_real()).map_or(for_long, Timeline::nap)
    }

    /// Notes that a command went out or came back.
    fn touch(&self) {
        self.last_activity.store(fence::now(), Ordering::Relaxed);
    }

    /// Wakes the device for a request that needs the firmware.
    fn resume(&self) -> Result<(), Errno> {
        if self.management_dead.load(Ordering::Relaxed) { Err(Errno::NODEV) } else { Ok(()) }
    }
}

/// A mapping of the client.
#[derive(Debug)]
struct ClientMapping {
    len: usize,
    bo: Arc<Bo>,
}

/// One open file.
#[derive(Debug)]
pub(super) struct Client {
    device: Arc<Device>,
    pid: i64,
    space: Arc<Space>,
    /// Shared with contexts, which look a chain's commands up when they run it.
    buffers: Arc<Mutex<Handles<Arc<Bo>>>>,
    syncobjs: Mutex<Handles<Arc<Syncobj>>>,
    contexts: Mutex<Handles<Arc<Hwctx>>>,
    mappings: Mutex<BTreeMap<usize, ClientMapping>>,
}

impl Client {
    fn bo(&self, handle: u32) -> Option<Arc<Bo>> {
        locked(&self.buffers).get(handle)
    }

    fn context(&self, handle: u32) -> Result<Arc<Hwctx>, Errno> {
        locked(&self.contexts).get(handle).ok_or(Errno::INVAL)
    }

    /// Everything that happens when the last reference to the file goes.
    fn close(&self) {
        let contexts = locked(&self.contexts).take();
        drop(locked(&self.syncobjs).take());
        for context in contexts {
            context.destroy();
        }
        drop(locked(&self.buffers).take());
        locked(&self.mappings).clear();
        self.space.clear();
    }

    /// Finds what `Door::map` should map; checks as the DRM core does.
    fn mappable(&self, len: usize, offset: u64) -> Result<Arc<Bo>, Errno> {
        // Below the offsets that the DRM core gives to buffers, the driver looks for doorbells of user-mode queues.
        let unknown = if offset < FIRST_MAP_OFFSET { Errno::OPNOTSUPP } else { Errno::INVAL };
        let bo = self.device.shared().by_offset.get(&offset).and_then(Weak::upgrade).ok_or(unknown)?;
        if len == 0 || len as u64 > bo.size {
            return Err(Errno::INVAL);
        }
        if !locked(&self.buffers).iter().any(|(_, known)| Arc::ptr_eq(known, &bo)) {
            return Err(Errno::ACCESS);
        }
        Ok(bo)
    }

    /// Notes a mapping, in place of whatever it replaced.
    fn note_mapping(&self, ptr: NonNull<u8>, len: usize, bo: Arc<Bo>) {
        self.note_mapping_at(ptr.as_ptr().addr(), len, bo);
    }

    /// As [`Client::note_mapping`], by address.
    fn note_mapping_at(&self, at: usize, len: usize, bo: Arc<Bo>) {
        let len = len.next_multiple_of(PAGE as usize);
        let mut mappings = locked(&self.mappings);
        let replaced: Vec<usize> =
            mappings.range(..at + len).filter(|(start, old)| *start + old.len > at).map(|(&start, _)| start).collect();
        for start in replaced {
            if let Some(old) = mappings.remove(&start) {
                self.space.detach(start as u64);
                old.bo.unmapped();
            }
        }
        bo.mapped(at as u64);
        if let (AddressMode::Sva, Some(memory)) = (self.device.config.mode, &bo.memory) {
            self.space.attach(at as u64, len as u64, Arc::clone(memory));
        }
        mappings.insert(at, ClientMapping { len, bo });
    }

    /// Forgets a mapping, once no command uses its buffer any more.
    fn forget_mapping(&self, ptr: NonNull<u8>) {
        let at = ptr.as_ptr().addr();
        let Some(old) = locked(&self.mappings).remove(&at) else { return };
        self.device.hub.wait_fences(&old.bo.busy());
        self.space.detach(at as u64);
        old.bo.unmapped();
    }

    /// Flushes the lines of a range of a mapping.
    fn flush(&self, ptr: NonNull<u8>, len: usize) {
        let at = ptr.as_ptr().addr();
        let line = crate::front::LINE;
        let bytes = if len == 0 { 0 } else { (at + len).next_multiple_of(line) - at / line * line };
        self.device.stats.update(|counts| {
            counts.flushes += 1;
            counts.flushed_bytes += bytes as u64;
        });
        let mappings = locked(&self.mappings);
        let Some((&start, mapping)) = mappings.range(..=at).next_back() else {
            drop(mappings);
            return self.flush_pinned(at, len);
        };
        if at - start >= mapping.len {
            drop(mappings);
            return self.flush_pinned(at, len);
        }
        let bo = Arc::clone(&mapping.bo);
        drop(mappings);
        if let Some(memory) = &bo.memory {
            memory.flush(at - start, len);
        }
    }

    /// As [`Client::flush`], in memory of the client's own.
    fn flush_pinned(&self, at: usize, len: usize) {
        let buffers = locked(&self.buffers);
        let found = buffers.iter().find_map(|(_, bo)| {
            let offset = (at as u64).checked_sub(bo.pinned.as_ref()?.addr)?;
            (offset < bo.size).then(|| (bo.memory.clone(), offset))
        });
        drop(buffers);
        if let Some((Some(memory), offset)) = found {
            memory.flush(offset as usize, len);
        }
    }
}
