//! The syncobj ioctls (`drm_syncobj.c`).

use std::sync::Arc;

use amdxdna_ioctl::Errno;
use amdxdna_ioctl::abi::drm::{self, SyncobjFdFlags, SyncobjWaitFlags};
use rustix::fs::MemfdFlags;

use super::fence::{Fences, Syncobj, Wait, now};
use super::{Client, locked};
use crate::front::{dup_user, give_fd, read_user, write_user};

/// How long TRANSFER waits for a point to be submitted (`DRM_SYNCOBJ_WAIT_FOR_SUBMIT_TIMEOUT`).
const FOR_SUBMIT_NS: i64 = 5_000_000_000;

/// Handles of one call that the kernel could still allocate arrays for, about.
const MOST_HANDLES: u32 = 1 << 19;

pub(super) fn inode(fd: impl std::os::fd::AsFd) -> Result<(u64, u64), Errno> {
    let stat = rustix::fs::fstat(fd)?;
    Ok((stat.st_dev, stat.st_ino))
}

impl Client {
    fn syncobj(&self, handle: u32) -> Result<Arc<Syncobj>, Errno> {
        locked(&self.syncobjs).get(handle).ok_or(Errno::NOENT)
    }

    /// Handles of an array argument.
    fn syncobjs(&self, addr: u64, count: u32) -> Result<Vec<Arc<Syncobj>>, Errno> {
        if count > MOST_HANDLES {
            return Err(Errno::NOMEM);
        }
        let mut handles = vec![0u32; count as usize];
        read_user(addr, bytemuck::cast_slice_mut(&mut handles))?;
        handles.into_iter().map(|handle| self.syncobj(handle)).collect()
    }

    pub(super) fn add_syncobj(&self, syncobj: Arc<Syncobj>) -> u32 {
        locked(&self.syncobjs).insert(syncobj)
    }

    pub(super) fn syncobj_create(&self, a: &mut drm::SyncobjCreate) -> Result<(), Errno> {
        let flags = drm::SyncobjCreateFlags::from_bits(a.flags).ok_or(Errno::INVAL)?;
        let syncobj = Syncobj::default();
        if flags.contains(drm::SyncobjCreateFlags::SIGNALED) {
            syncobj.replace(Some(Fences::new()));
        }
        a.handle = self.add_syncobj(Arc::new(syncobj));
        Ok(())
    }

    pub(super) fn syncobj_destroy(&self, a: &drm::SyncobjDestroy) -> Result<(), Errno> {
        if a.pad != 0 {
            return Err(Errno::INVAL);
        }
        locked(&self.syncobjs).remove(a.handle).map(drop).ok_or(Errno::INVAL)
    }

    pub(super) fn syncobj_handle_to_fd(&self, a: &mut drm::SyncobjHandle) -> Result<(), Errno> {
        let flags = SyncobjFdFlags::from_bits(a.flags).ok_or(Errno::INVAL)?;
        if a.pad != 0 || (a.point != 0 && !flags.contains(SyncobjFdFlags::TIMELINE)) {
            return Err(Errno::INVAL);
        }
        if flags.contains(SyncobjFdFlags::SYNC_FILE) {
            // A sync file would have to be a file that poll knows: not modelled.
            return Err(Errno::OPNOTSUPP);
        }
        // Without the sync file, a point says nothing: the whole syncobj is meant.
        if !flags.is_empty() {
            return Err(Errno::INVAL);
        }
        let syncobj = locked(&self.syncobjs).get(a.handle).ok_or(Errno::INVAL)?;
        let file = rustix::fs::memfd_create("syncobj", MemfdFlags::CLOEXEC)?;
        self.device.shared().syncobj_files.insert(inode(&file)?, syncobj);
        a.fd = give_fd(file)?;
        Ok(())
    }

    pub(super) fn syncobj_fd_to_handle(&self, a: &mut drm::SyncobjHandle) -> Result<(), Errno> {
        let flags = SyncobjFdFlags::from_bits(a.flags).ok_or(Errno::INVAL)?;
        if a.pad != 0 {
            return Err(Errno::INVAL);
        }
        if flags.contains(SyncobjFdFlags::SYNC_FILE) {
            return Err(Errno::OPNOTSUPP);
        }
        if !flags.is_empty() || a.point != 0 {
            return Err(Errno::INVAL);
        }
        let file = dup_user(a.fd).map_err(|_| Errno::INVAL)?;
        let syncobj = self.device.shared().syncobj_files.get(&inode(&file)?).cloned().ok_or(Errno::INVAL)?;
        a.handle = self.add_syncobj(syncobj);
        Ok(())
    }

    pub(super) fn syncobj_wait(&self, a: &mut drm::SyncobjWait) -> Result<(), Errno> {
        let allowed = SyncobjWaitFlags::ALL | SyncobjWaitFlags::FOR_SUBMIT | SyncobjWaitFlags::DEADLINE;
        let flags = SyncobjWaitFlags::from_bits(a.flags).filter(|flags| allowed.contains(*flags));
        let flags = flags.ok_or(Errno::INVAL)?;
        if a.count_handles == 0 {
            return Ok(());
        }
        let syncobjs = self.syncobjs(a.handles, a.count_handles)?;
        let points: Vec<_> = syncobjs.into_iter().map(|syncobj| (syncobj, 0)).collect();
        a.first_signaled = self.wait(&points, flags, a.timeout_nsec)?;
        Ok(())
    }

    pub(super) fn syncobj_timeline_wait(&self, a: &mut drm::SyncobjTimelineWait) -> Result<(), Errno> {
        let flags = SyncobjWaitFlags::from_bits(a.flags).ok_or(Errno::INVAL)?;
        if a.count_handles == 0 {
            return Ok(());
        }
        let syncobjs = self.syncobjs(a.handles, a.count_handles)?;
        let mut points = vec![0u64; syncobjs.len()];
        if a.points != 0 {
            read_user(a.points, bytemuck::cast_slice_mut(&mut points))?;
        }
        let points: Vec<_> = syncobjs.into_iter().zip(points).collect();
        a.first_signaled = self.wait(&points, flags, a.timeout_nsec)?;
        Ok(())
    }

    fn wait(&self, points: &[(Arc<Syncobj>, u64)], flags: SyncobjWaitFlags, deadline: i64) -> Result<u32, Errno> {
        let how = Wait {
            all: flags.contains(SyncobjWaitFlags::ALL),
            for_submit: flags.contains(SyncobjWaitFlags::FOR_SUBMIT),
            available: flags.contains(SyncobjWaitFlags::AVAILABLE),
            deadline,
        };
        let first = self.device.hub.wait(points, how, || self.device.interrupted(), || self.device.nap())?;
        if let Some(timeline) = self.device.firmware.timeline() {
            let waited = if how.all { points } else { &points[first as usize..=first as usize] };
            let contexts = locked(&self.contexts);
            let due = |(syncobj, point): &(Arc<Syncobj>, u64)| {
                contexts.iter().find_map(|(_, context)| context.due(syncobj, *point))
            };
            waited.iter().filter_map(due).for_each(|due| timeline.waited(due));
        }
        Ok(first)
    }

    pub(super) fn syncobj_query(&self, a: &drm::SyncobjTimelineArray) -> Result<(), Errno> {
        let flags = drm::SyncobjQueryFlags::from_bits(a.flags).ok_or(Errno::INVAL)?;
        if a.count_handles == 0 {
            return Err(Errno::INVAL);
        }
        let submitted = flags.contains(drm::SyncobjQueryFlags::LAST_SUBMITTED);
        let syncobjs = self.syncobjs(a.handles, a.count_handles)?;
        let points: Vec<u64> = syncobjs.iter().map(|syncobj| syncobj.query(submitted)).collect();
        write_user(a.points, bytemuck::cast_slice(&points))
    }

    pub(super) fn syncobj_timeline_signal(&self, a: &drm::SyncobjTimelineArray) -> Result<(), Errno> {
        if a.flags != 0 || a.count_handles == 0 {
            return Err(Errno::INVAL);
        }
        let syncobjs = self.syncobjs(a.handles, a.count_handles)?;
        let mut points = vec![0u64; syncobjs.len()];
        if a.points != 0 {
            read_user(a.points, bytemuck::cast_slice_mut(&mut points))?;
        }
        self.device.hub.change(|| {
            for (syncobj, point) in syncobjs.iter().zip(points) {
                syncobj.add_point(point, Fences::new());
            }
        });
        Ok(())
    }

    pub(super) fn syncobj_transfer(&self, a: &drm::SyncobjTransfer) -> Result<(), Errno> {
        if a.pad != 0 {
            return Err(Errno::INVAL);
        }
        let destination = self.syncobj(a.dst_handle)?;
        let source = self.syncobj(a.src_handle)?;
        let flags = SyncobjWaitFlags::from_bits_retain(a.flags);
        if flags.contains(SyncobjWaitFlags::FOR_SUBMIT) {
            let how = Wait { all: false, for_submit: true, available: true, deadline: now() + FOR_SUBMIT_NS };
            let points = [(Arc::clone(&source), a.src_point)];
            self.device.hub.wait(&points, how, || self.device.interrupted(), || self.device.nap())?;
        }
        let fences = source.find(a.src_point).ok_or(Errno::INVAL)?;
        self.device.hub.change(|| {
            if a.dst_point == 0 {
                destination.replace(Some(fences));
            } else {
                destination.add_point(a.dst_point, fences);
            }
        });
        Ok(())
    }

    pub(super) fn syncobj_eventfd(&self, a: &drm::SyncobjEventfd) -> Result<(), Errno> {
        let flags = SyncobjWaitFlags::from_bits(a.flags).ok_or(Errno::INVAL)?;
        if !SyncobjWaitFlags::AVAILABLE.contains(flags) {
            return Err(Errno::INVAL);
        }
        let syncobj = self.syncobj(a.handle)?;
        let eventfd = dup_user(a.fd)?;
        self.device.hub.listen(syncobj, a.point, !flags.is_empty(), eventfd);
        Ok(())
    }
}
