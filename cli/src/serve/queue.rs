//! Who waits for the one NPU: a bounded queue, in which clients take turns.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Jobs that wait. Clients take turns; what one client has asked comes in its order.
#[derive(Debug)]
pub(super) struct Queue<T> {
    inner: Mutex<Inner<T>>,
    bell: Condvar,
    limit: usize,
}

#[derive(Debug)]
struct Inner<T> {
    /// A lane for each client that has something waiting; the next turn is the first one's.
    lanes: VecDeque<Lane<T>>,
    waiting: usize,
    next: u64,
    closed: bool,
}

#[derive(Debug)]
struct Lane<T> {
    client: String,
    jobs: VecDeque<(u64, T)>,
}

/// What came of looking for a job.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next<T> {
    /// It is to be done.
    Job(T),
    /// None has come.
    Nothing,
    /// None will come.
    Closed,
}

/// Why a job was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoPlace {
    /// So many are waiting.
    Full(usize),
    /// It is over.
    Closed,
}

/// A place in the queue, given up when it is dropped. Nothing happens then if the job's turn has come.
#[derive(Debug)]
pub(super) struct Place<T> {
    queue: Arc<Queue<T>>,
    id: u64,
}

impl<T> Queue<T> {
    pub(super) fn new(limit: usize) -> Queue<T> {
        let inner = Inner { lanes: VecDeque::new(), waiting: 0, next: 0, closed: false };
        Queue { inner: Mutex::new(inner), bell: Condvar::new(), limit }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        // Every change is whole before the lock is given back.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a job, if there is a place.
    pub(super) fn enter(self: &Arc<Self>, client: &str, job: T) -> Result<Place<T>, NoPlace> {
        let mut inner = self.lock();
        if inner.closed {
            return Err(NoPlace::Closed);
        }
        if inner.waiting >= self.limit {
            return Err(NoPlace::Full(inner.waiting));
        }
        let id = inner.next;
        inner.next += 1;
        inner.waiting += 1;
        match inner.lanes.iter_mut().find(|lane| lane.client == client) {
            Some(lane) => lane.jobs.push_back((id, job)),
            None => inner.lanes.push_back(Lane { client: client.to_owned(), jobs: VecDeque::from([(id, job)]) }),
        }
        self.bell.notify_one();
        Ok(Place { queue: Arc::clone(self), id })
    }

    /// The job whose turn it is; waits so long for one.
    pub(super) fn next(&self, patience: Duration) -> Next<T> {
        let empty = |inner: &mut Inner<T>| inner.waiting == 0 && !inner.closed;
        let waited = self.bell.wait_timeout_while(self.lock(), patience, empty);
        let (mut inner, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let Some(mut lane) = inner.lanes.pop_front() else {
            return if inner.closed { Next::Closed } else { Next::Nothing };
        };
        let job = lane.jobs.pop_front();
        if !lane.jobs.is_empty() {
            inner.lanes.push_back(lane);
        }
        match job {
            Some((_, job)) => {
                inner.waiting -= 1;
                Next::Job(job)
            }
            None => Next::Nothing,
        }
    }

    /// Waits so long, or until it is over; says whether it is.
    pub(super) fn pause(&self, time: Duration) -> bool {
        let waited = self.bell.wait_timeout_while(self.lock(), time, |inner| !inner.closed);
        waited.unwrap_or_else(PoisonError::into_inner).0.closed
    }

    /// Takes no more, and gives back those that wait.
    pub(super) fn close(&self) -> Vec<T> {
        let mut inner = self.lock();
        inner.closed = true;
        self.bell.notify_all();
        inner.drain()
    }

    /// Gives back those that wait.
    pub(super) fn drain(&self) -> Vec<T> {
        self.lock().drain()
    }

    /// How many wait.
    pub(super) fn waiting(&self) -> usize {
        self.lock().waiting
    }

    /// How many may.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }
}

impl<T> Inner<T> {
    fn drain(&mut self) -> Vec<T> {
        self.waiting = 0;
        self.lanes.drain(..).flat_map(|lane| lane.jobs).map(|(_, job)| job).collect()
    }
}

impl<T> Drop for Place<T> {
    fn drop(&mut self) {
        let mut inner = self.queue.lock();
        let Inner { lanes, waiting, .. } = &mut *inner;
        for lane in lanes.iter_mut() {
            let before = lane.jobs.len();
            lane.jobs.retain(|(id, _)| *id != self.id);
            *waiting -= before - lane.jobs.len();
        }
        lanes.retain(|lane| !lane.jobs.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    #[test]
    fn clients_take_turns() {
        let queue = Arc::new(Queue::new(10));
        let places: Vec<_> =
            [("a", 1), ("a", 2), ("a", 3), ("b", 4), ("c", 5), ("b", 6)].map(|(c, j)| queue.enter(c, j)).into();
        let order: Vec<_> = (0..6).map(|_| queue.next(NOW)).collect();
        assert_eq!(order, [1, 4, 5, 2, 6, 3].map(Next::Job));
        assert_eq!(queue.next(NOW), Next::Nothing);
        drop(places);
        assert_eq!(queue.waiting(), 0);
    }

    #[test]
    fn a_place_that_is_left_is_free_at_once() {
        let queue = Arc::new(Queue::new(2));
        let first = queue.enter("a", 1).unwrap();
        let second = queue.enter("a", 2).unwrap();
        assert_eq!(queue.enter("b", 3).unwrap_err(), NoPlace::Full(2));
        drop(first);
        let _third = queue.enter("b", 3).unwrap();
        assert_eq!(queue.next(NOW), Next::Job(2));
        // Its turn has come: there is nothing to leave.
        drop(second);
        assert_eq!(queue.waiting(), 1);
        assert_eq!(queue.next(NOW), Next::Job(3));
    }

    #[test]
    fn a_closed_queue_gives_back_what_waits_and_wakes_who_looks() {
        let queue = Arc::new(Queue::new(2));
        let _place = queue.enter("a", 1).unwrap();
        assert_eq!(queue.close(), [1]);
        assert_eq!(queue.enter("a", 2).unwrap_err(), NoPlace::Closed);
        assert_eq!(queue.next(Duration::from_secs(60)), Next::Closed);
        assert!(queue.pause(Duration::from_secs(60)));
        let open: Arc<Queue<u8>> = Arc::new(Queue::new(1));
        let waiting = Arc::clone(&open);
        let waits = std::thread::spawn(move || waiting.next(Duration::from_secs(60)));
        open.close();
        assert_eq!(waits.join().unwrap(), Next::Closed);
    }
}
