//! Fences and the timeline of a syncobj (`drm_syncobj.c`, `dma-fence-chain.c`).

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use amdxdna_ioctl::Errno;
use rustix::time::{ClockId, clock_gettime};

/// How often a fence is looked at between two looks at everything.
const SPINS: usize = 200;

/// Nanoseconds of `CLOCK_MONOTONIC`.
pub(super) fn now() -> i64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec)
}

/// Signals once, when its command is over.
#[derive(Debug, Default)]
pub(super) struct Fence {
    done: AtomicBool,
}

impl Fence {
    /// Whether it has signalled.
    pub(super) fn done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }
}

/// Several fences as one: signalled when all are. Empty: signalled from the start.
pub(super) type Fences = Vec<Arc<Fence>>;

fn all_done(fences: &[Arc<Fence>]) -> bool {
    fences.iter().all(|fence| fence.done())
}

/// What a syncobj holds.
#[derive(Debug, Default)]
enum Content {
    /// Nothing: nobody has submitted.
    #[default]
    Empty,
    /// One fence without a point.
    Binary(Fences),
    /// A chain of points.
    Timeline {
        /// Points that have not all signalled yet, oldest first.
        pending: VecDeque<(u64, Fences)>,
        /// The last point added.
        head: u64,
        /// The last point that has signalled with all before it.
        signalled: u64,
    },
}

/// A syncobj.
#[derive(Debug, Default)]
pub(super) struct Syncobj {
    content: Mutex<Content>,
}

impl Syncobj {
    fn lock(&self) -> MutexGuard<'_, Content> {
        let mut content = self.content.lock().unwrap_or_else(PoisonError::into_inner);
        if let Content::Timeline { pending, signalled, .. } = &mut *content {
            while pending.front().is_some_and(|(_, fences)| all_done(fences)) {
                if let Some((point, _)) = pending.pop_front() {
                    *signalled = point;
                }
            }
        }
        content
    }

    /// Holds one fence, or nothing.
    pub(super) fn replace(&self, fences: Option<Fences>) {
        *self.lock() = fences.map_or(Content::Empty, Content::Binary);
    }

    /// Adds a point. One that is not later than the head takes the head's number, as the kernel's chain does.
    pub(super) fn add_point(&self, point: u64, fences: Fences) {
        let mut content = self.lock();
        if !matches!(*content, Content::Timeline { .. }) {
            let mut pending = VecDeque::new();
            if let Content::Binary(before) = &*content
                && !all_done(before)
            {
                pending.push_back((0, before.clone()));
            }
            *content = Content::Timeline { pending, head: 0, signalled: 0 };
        }
        if let Content::Timeline { pending, head, .. } = &mut *content {
            *head = point.max(*head);
            pending.push_back((*head, fences));
        }
    }

    /// The fence behind a point; `None` when nobody has submitted it. Point 0 is the head of the chain.
    pub(super) fn find(&self, point: u64) -> Option<Fences> {
        match &*self.lock() {
            Content::Empty => None,
            Content::Binary(fences) => (point == 0).then(|| fences.clone()),
            Content::Timeline { pending, head, .. } => {
                if point > *head {
                    return None;
                }
                let mut found = Fences::new();
                for (at, fences) in pending {
                    found.extend(fences.iter().filter(|fence| !fence.done()).cloned());
                    if point != 0 && *at >= point {
                        break;
                    }
                }
                Some(found)
            }
        }
    }

    /// The last signalled point, or the last submitted one. 0 for nothing, and for point 0.
    pub(super) fn query(&self, submitted: bool) -> u64 {
        match &*self.lock() {
            Content::Timeline { head, .. } if submitted => *head,
            Content::Timeline { signalled, .. } => *signalled,
            _ => 0,
        }
    }
}

/// An eventfd that wants to know of a point.
#[derive(Debug)]
struct Listener {
    syncobj: Arc<Syncobj>,
    point: u64,
    available: bool,
    fences: Option<Fences>,
    eventfd: OwnedFd,
}

impl Listener {
    /// Tells the eventfd if it is time; true when done.
    fn poll(&mut self) -> bool {
        if self.fences.is_none() {
            self.fences = self.syncobj.find(self.point);
        }
        let ready = self.fences.as_ref().is_some_and(|fences| self.available || all_done(fences));
        if ready {
            // A full counter is readable already.
            let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
        }
        ready
    }
}

/// One wait for several points.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    /// All of them, not one.
    pub(super) all: bool,
    /// A point without a fence is waited for.
    pub(super) for_submit: bool,
    /// Until there is a fence, not until it signals.
    pub(super) available: bool,
    /// Absolute nanoseconds of `CLOCK_MONOTONIC`; 0 polls.
    pub(super) deadline: i64,
}

/// Where fences signal and everybody waits.
#[derive(Debug, Default)]
pub(super) struct Hub {
    listeners: Mutex<Vec<Listener>>,
    changed: Condvar,
}

impl Hub {
    fn lock(&self) -> MutexGuard<'_, Vec<Listener>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `change`, which signals fences or changes syncobjs, and wakes everybody.
    pub(super) fn change<T>(&self, change: impl FnOnce() -> T) -> T {
        let mut listeners = self.lock();
        let result = change();
        listeners.retain_mut(|listener| !listener.poll());
        self.changed.notify_all();
        result
    }

    /// Signals a fence.
    pub(super) fn signal(&self, fence: &Fence) {
        self.change(|| fence.done.store(true, Ordering::Release));
    }

    /// Writes to an eventfd when a point signals (or becomes available).
    pub(super) fn listen(&self, syncobj: Arc<Syncobj>, point: u64, available: bool, eventfd: OwnedFd) {
        let mut listener = Listener { syncobj, point, available, fences: None, eventfd };
        let mut listeners = self.lock();
        if !listener.poll() {
            listeners.push(listener);
        }
    }

    /// Waits for points of syncobjs; the index of the first that was ready.
    ///
    /// # Errors
    /// `EINVAL` for a point that nobody has submitted, without leave to wait for that; `ETIME`; `EINTR` if `interrupt`
    /// says so where the wait would begin to block. `nap` says how long to sleep at most before points are looked at
    /// again, `None` for not at all.
    pub(super) fn wait(
        &self,
        points: &[(Arc<Syncobj>, u64)],
        how: Wait,
        mut interrupt: impl FnMut() -> bool,
        nap: impl Fn() -> Option<Duration>,
    ) -> Result<u32, Errno> {
        let mut found: Vec<Option<Fences>> = vec![None; points.len()];
        let mut listeners = self.lock();
        let mut first_round = true;
        loop {
            let (mut ready, mut first) = (0, None);
            for (i, (slot, (syncobj, point))) in found.iter_mut().zip(points).enumerate() {
                if slot.is_none() {
                    *slot = syncobj.find(*point);
                }
                match slot {
                    None if !(how.for_submit || how.available) => return Err(Errno::INVAL),
                    Some(fences) if how.available || all_done(fences) => {
                        ready += 1;
                        first.get_or_insert(i);
                    }
                    _ => {}
                }
            }
            if let Some(first) = first
                && (ready == points.len() || !how.all)
            {
                return Ok(first as u32);
            }
            let left = if how.deadline == 0 { 0 } else { how.deadline.saturating_sub(now()) };
            if left <= 0 {
                return Err(Errno::TIME);
            }
            if std::mem::take(&mut first_round) && interrupt() {
                return Err(Errno::INTR);
            }
            let Some(nap) = nap() else {
                drop(listeners);
                for _ in 0..SPINS {
                    if found.iter().flatten().any(|fences| all_done(fences)) {
                        break;
                    }
                    std::hint::spin_loop();
                }
                listeners = self.lock();
                continue;
            };
            let left = Duration::from_nanos(left.unsigned_abs()).min(nap);
            listeners = self.changed.wait_timeout(listeners, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits, for as long as it takes, until fences have signalled.
    pub(super) fn wait_fences(&self, fences: &[Arc<Fence>]) {
        let mut listeners = self.lock();
        while !all_done(fences) {
            listeners = self.changed.wait(listeners).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{Fence, Hub, Syncobj, all_done};

    #[test]
    fn point_zero_is_the_head_of_the_chain() {
        let (hub, syncobj) = (Hub::default(), Syncobj::default());
        let fences = [(); 3].map(|()| Arc::new(Fence::default()));
        for (point, fence) in fences.iter().enumerate() {
            syncobj.add_point(point as u64, vec![Arc::clone(fence)]);
        }
        let (head, first) = (syncobj.find(0).unwrap(), syncobj.find(1).unwrap());
        assert_eq!((head.len(), first.len()), (3, 2), "all that is submitted; points 0 and 1");
        hub.signal(&fences[0]);
        hub.signal(&fences[1]);
        assert!(all_done(&first) && !all_done(&head));
        hub.signal(&fences[2]);
        assert!(all_done(&head));
    }

    #[test]
    fn points_are_over_in_order_alone() {
        let (hub, syncobj) = (Hub::default(), Syncobj::default());
        let fences = [(); 2].map(|()| Arc::new(Fence::default()));
        syncobj.add_point(1, vec![Arc::clone(&fences[0])]);
        syncobj.add_point(2, vec![Arc::clone(&fences[1])]);
        hub.signal(&fences[1]);
        assert_eq!((syncobj.query(false), syncobj.query(true)), (0, 2), "the first is not over");
        assert!(!all_done(&syncobj.find(2).unwrap()));
        hub.signal(&fences[0]);
        assert_eq!(syncobj.query(false), 2);
    }
}
