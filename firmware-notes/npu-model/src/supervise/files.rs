//! Open device files of supervised processes.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use amdxdna_ioctl::Door;

use super::filter::FDS;
use super::process::{self, Caller};
use super::sys;
use crate::driver::{Piece, Remote};
use crate::front::Memory;
use crate::trace::TracedDoor;

/// One open file.
#[derive(Debug)]
pub(super) struct File {
    pub(super) remote: Arc<Remote>,
    pub(super) traced: Option<Arc<TracedDoor>>,
    /// The same open file as the client's.
    pub(super) description: OwnedFd,
    /// Of the store's file.
    pub(super) inode: u64,
    /// Whose address space the device uses: the process that opened.
    pub(super) owner: u32,
    maps: Mutex<Maps>,
}

/// What is known of the client's mappings.
#[derive(Debug, Default)]
struct Maps {
    pieces: Vec<Piece>,
    /// Calls of mmap that the kernel may not have carried out yet.
    pending: Vec<Pending>,
    stale: bool,
    /// The file has numbers that the filter does not know: mappings come without notice.
    unseen: bool,
}

#[derive(Debug)]
struct Pending {
    tid: u32,
    offset: u64,
    /// Mappings of that offset before.
    before: usize,
}

impl Maps {
    fn count(&self, offset: u64) -> usize {
        self.pieces.iter().filter(|piece| (piece.offset..piece.offset + piece.len).contains(&offset)).count()
    }
}

impl File {
    pub(super) fn new(
        remote: Arc<Remote>,
        traced: Option<Arc<TracedDoor>>,
        description: OwnedFd,
        inode: u64,
        owner: u32,
    ) -> Self {
        Self { remote, traced, description, inode, owner, maps: Mutex::default() }
    }

    /// Where its ioctls go.
    pub(super) fn door(&self) -> &dyn Door {
        match &self.traced {
            Some(traced) => &**traced,
            None => &*self.remote,
        }
    }

    fn maps(&self) -> MutexGuard<'_, Maps> {
        self.maps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call of mmap goes to the kernel.
    pub(super) fn will_map(&self, caller: &Caller, offset: u64) {
        let mut maps = self.maps();
        let before = maps.count(offset);
        maps.pending.push(Pending { tid: caller.tid, offset, before });
    }

    /// Tells the model of the client's mappings, as far as they may have changed.
    pub(super) fn sync(&self, caller: &Caller, anyway: bool) {
        let mut maps = self.maps();
        let mut returned = false;
        // A thread that makes another call has come back from its mmap.
        maps.pending.retain(|pending| {
            let back = pending.tid == caller.tid;
            returned |= back;
            !back
        });
        maps.stale |= returned;
        if !(maps.stale || maps.unseen || anyway || !maps.pending.is_empty()) {
            return;
        }
        self.look(&mut maps);
        let pending = std::mem::take(&mut maps.pending);
        maps.pending = pending.into_iter().filter(|pending| maps.count(pending.offset) <= pending.before).collect();
    }
}

impl File {
    /// Looks at what the client has mapped now.
    fn look(&self, maps: &mut Maps) {
        maps.pieces = process::mappings(self.owner, self.inode);
        let changes = self.remote.set_mappings(&maps.pieces);
        if let Some(traced) = &self.traced {
            for piece in changes.new {
                traced.mapped(piece.offset, piece.addr, piece.len);
            }
        }
        maps.stale = !changes.settled;
    }
}

/// All of them, by process and number.
#[derive(Debug, Default)]
pub(super) struct Files {
    open: Mutex<HashMap<(u32, RawFd), Arc<File>>>,
    /// Processes by thread.
    processes: Mutex<HashMap<u32, u32>>,
    /// Pages of closed files that a process has mapped still.
    leftovers: Mutex<Vec<(u32, Arc<Memory>)>>,
}

impl Files {
    fn open(&self) -> MutexGuard<'_, HashMap<(u32, RawFd), Arc<File>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The process of a thread.
    pub(super) fn process(&self, tid: u32) -> u32 {
        let mut processes = self.processes.lock().unwrap_or_else(PoisonError::into_inner);
        *processes.entry(tid).or_insert_with(|| process::of_thread(tid).unwrap_or(tid))
    }

    /// The open file behind a number of the caller's.
    pub(super) fn find(&self, caller: &Caller, fd: RawFd) -> Option<Arc<File>> {
        if let Some(file) = self.open().get(&(caller.pid, fd)) {
            return Some(Arc::clone(file));
        }
        // A duplicate, or inherited from a parent.
        let mut open = self.open();
        let file = open.values().find(|file| sys::is_same_file(file.description.as_fd(), caller.tid, fd))?;
        let file = Arc::clone(file);
        if !FDS.contains(&(fd as u32)) {
            file.maps().unseen = true;
        }
        open.insert((caller.pid, fd), Arc::clone(&file));
        Some(file)
    }

    /// A free number for another open file.
    pub(super) fn free_number(&self, caller: &Caller) -> Option<u32> {
        let open = self.open();
        let taken = process::files(caller.pid);
        FDS.clone().find(|&fd| !taken.contains(&(fd as RawFd)) && !open.contains_key(&(caller.pid, fd as RawFd)))
    }

    pub(super) fn insert(&self, pid: u32, fd: RawFd, file: Arc<File>) {
        self.open().insert((pid, fd), file);
    }

    /// Forgets a number; the file, if that was its last one.
    pub(super) fn remove(&self, pid: u32, fd: RawFd) -> Option<Arc<File>> {
        let mut open = self.open();
        let file = open.remove(&(pid, fd))?;
        // Duplicates that have not been seen in use yet.
        let holds = |holder: u32| {
            let others = process::files(holder).into_iter().filter(|&other| (holder, other) != (pid, fd));
            others.into_iter().any(|other| sys::is_same_file(file.description.as_fd(), holder, other))
        };
        let known = open.values().any(|other| Arc::ptr_eq(other, &file));
        if known || holds(pid) {
            return None;
        }
        drop(open);
        file.look(&mut file.maps());
        let left = file.remote.close();
        let mut leftovers = self.leftovers.lock().unwrap_or_else(PoisonError::into_inner);
        leftovers.extend(left.into_iter().map(|memory| (file.owner, memory)));
        drop(leftovers);
        Some(file)
    }

    /// Closes what processes that are gone had open.
    pub(super) fn reap(&self) {
        let mut gone = Vec::new();
        let mut open = self.open();
        open.retain(|&(pid, _), file| {
            let alive = process::is_alive(pid);
            if !alive {
                gone.push(Arc::clone(file));
            }
            alive
        });
        gone.retain(|file| !open.values().any(|other| Arc::ptr_eq(other, file)));
        drop(open);
        self.processes.lock().unwrap_or_else(PoisonError::into_inner).retain(|_, pid| process::is_alive(*pid));
        self.leftovers.lock().unwrap_or_else(PoisonError::into_inner).retain(|(pid, _)| process::is_alive(*pid));
        for file in gone {
            file.remote.close();
        }
    }

    /// Closes everything.
    pub(super) fn clear(&self) {
        let files: Vec<_> = self.open().drain().map(|(_, file)| file).collect();
        for file in files {
            file.remote.close();
        }
    }
}
