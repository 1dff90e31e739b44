//! What a case says, and how it stops early.

use std::fmt;
use std::panic::Location;

use amdxdna_ioctl::{Errno, errno_name};

/// What became of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The device did what the table says.
    Pass,
    /// It did not; the words say what came instead, and where that was noticed.
    Fail(String),
    /// The case does not apply here; the words say why.
    Skip(String),
    /// The case was still running at its deadline, and was left behind.
    Timeout,
}

impl Outcome {
    /// Whether a run with this outcome is not fine.
    #[must_use]
    pub fn is_bad(&self) -> bool {
        matches!(self, Self::Fail(_) | Self::Timeout)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pass => f.write_str("pass"),
            Self::Fail(why) => write!(f, "FAIL: {why}"),
            Self::Skip(why) => write!(f, "skip: {why}"),
            Self::Timeout => f.write_str("TIMEOUT"),
        }
    }
}

/// Why a case ends before its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// Something was not as expected.
    Fail(String),
    /// The case does not apply.
    Skip(String),
}

/// The result of a case's body.
pub(super) type Verdict = Result<(), Stop>;

impl Stop {
    #[track_caller]
    pub(super) fn fail(what: impl fmt::Display) -> Self {
        Self::Fail(format!("{what} ({})", place()))
    }

    pub(super) fn skip(why: impl Into<String>) -> Self {
        Self::Skip(why.into())
    }
}

impl From<Errno> for Stop {
    #[track_caller]
    fn from(errno: Errno) -> Self {
        Self::fail(format_args!("unexpected {}", name(errno)))
    }
}

/// `file.rs:line` of whoever called.
#[track_caller]
fn place() -> String {
    let at = Location::caller();
    let file = at.file().rsplit('/').next().unwrap_or_default();
    format!("{file}:{}", at.line())
}

/// An errno by its name where it has one.
pub(super) fn name(errno: Errno) -> String {
    errno_name(errno).map_or_else(|| format!("errno {}", errno.raw_os_error()), str::to_owned)
}

/// Ends the case unless both are equal; further arguments say what they are.
macro_rules! same {
    ($got:expr, $want:expr $(,)?) => { same!($got, $want, "{}", stringify!($got)) };
    ($got:expr, $want:expr, $($what:tt)+) => {{
        let (got, want) = (&$got, &$want);
        if *got != *want {
            return Err($crate::cases::verdict::Stop::fail(format_args!(
                "{}: got {got:?}, expected {want:?}", format_args!($($what)+)
            )));
        }
    }};
}

/// Ends the case unless the condition holds; further arguments say what was expected.
macro_rules! hold {
    ($holds:expr $(,)?) => { hold!($holds, "{}", stringify!($holds)) };
    ($holds:expr, $($what:tt)+) => {
        if !$holds {
            return Err($crate::cases::verdict::Stop::fail(format_args!("does not hold: {}", format_args!($($what)+))));
        }
    };
}

/// A table of one group's cases: `name: "what is expected"`, with `since m` and `danger` before the colon as needed.
macro_rules! cases {
    ($group:ident; $($name:ident $(since $since:literal)? $(danger $danger:literal)? : $expects:expr;)+) => {
        pub(super) const CASES: &[$crate::cases::Case] = &[$($crate::cases::Case {
            name: stringify!($name),
            group: $crate::cases::Group::$group,
            since: 0 $(+ $since)?,
            expects: $expects,
            danger: false $(|| $danger)?,
            run: |ctx| $crate::cases::outcome($name(ctx)),
        },)+];
    };
}
