//! Points in time as the syncobj ioctls take them.

use std::time::Duration;

/// An absolute time on `CLOCK_MONOTONIC`, in nanoseconds.
///
/// The wait ioctls take nothing else: a relative timeout looks to them like a moment long past, and a wait with it ends
/// at once, whether the command is done or not. Being absolute, a deadline survives `EINTR` without arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Deadline(i64);

impl Deadline {
    /// Does not wait at all.
    pub const POLL: Deadline = Deadline(0);
    /// Never passes.
    pub const NEVER: Deadline = Deadline(i64::MAX);

    /// This long from now; [`Deadline::NEVER`] if that is beyond what the clock can say.
    #[must_use]
    pub fn after(duration: Duration) -> Deadline {
        Deadline::after_instant(now(), duration)
    }

    /// A time that was read from `CLOCK_MONOTONIC`; negative ones are [`Deadline::POLL`].
    #[must_use]
    pub fn at_nanoseconds(nanoseconds: i64) -> Deadline {
        Deadline(nanoseconds.max(0))
    }

    /// What goes into `timeout_nsec`.
    #[must_use]
    pub fn nanoseconds(self) -> i64 {
        self.0
    }

    /// It lies in the past, or is [`Deadline::POLL`].
    #[must_use]
    pub fn has_passed(self) -> bool {
        self != Deadline::NEVER && self.0 <= now()
    }

    fn after_instant(now: i64, duration: Duration) -> Deadline {
        let wait = i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX);
        Deadline(now.saturating_add(wait))
    }
}

/// `CLOCK_MONOTONIC` now.
fn now() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_are_absolute_and_saturate() {
        let at = |now, duration| Deadline::after_instant(now, duration).nanoseconds();
        assert_eq!(at(5_000_000_123, Duration::from_secs(10)), 15_000_000_123);
        assert_eq!(at(7, Duration::ZERO), 7);
        assert_eq!(at(7, Duration::from_nanos(1)), 8);
        assert_eq!(at(1, Duration::MAX), i64::MAX);
        assert_eq!(at(i64::MAX, Duration::from_secs(1)), i64::MAX);
        assert_eq!(at(1, Duration::from_nanos(i64::MAX as u64 + 1)), i64::MAX);
        assert_eq!(Deadline::at_nanoseconds(-3), Deadline::POLL);
    }

    #[test]
    fn after_counts_from_this_clock() {
        let before = now();
        let deadline = Deadline::after(Duration::from_secs(3600));
        let after = now();
        assert!(deadline.nanoseconds() >= before + 3_600_000_000_000);
        assert!(deadline.nanoseconds() <= after + 3_600_000_000_000);
        assert!(!deadline.has_passed() && !Deadline::NEVER.has_passed());
        assert!(Deadline::POLL.has_passed() && Deadline::at_nanoseconds(before).has_passed());
    }
}
