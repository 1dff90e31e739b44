//! Ctrl-C: the first one asks for an end, the second one gets it.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Exit code of a program that was interrupted: 128 + SIGINT, as shells count.
const INTERRUPTED: i32 = 130;

/// The state of Ctrl-C and of a termination request.
#[derive(Debug, Clone)]
pub(crate) struct Interrupt {
    asked: Arc<AtomicBool>,
    /// The next signal ends the process at once: nothing is running that has to be ended with care. The driver cleans
    /// up behind a file that is closed.
    deadly: Arc<AtomicBool>,
}

impl Interrupt {
    /// Installs the handlers. Where the system refuses, Ctrl-C does what it does by default.
    pub(crate) fn install() -> Self {
        let this = Self { asked: Arc::default(), deadly: Arc::new(AtomicBool::new(true)) };
        for signal in [SIGINT, SIGTERM] {
            // In this order: a signal that arms the deadly one must not be the deadly one itself.
            let _ = flag::register_conditional_shutdown(signal, INTERRUPTED, Arc::clone(&this.deadly))
                .and_then(|_| flag::register(signal, Arc::clone(&this.deadly)))
                .and_then(|_| flag::register(signal, Arc::clone(&this.asked)));
        }
        this
    }

    /// Runs work that looks at [`Interrupt::asked`]: the first signal only asks.
    pub(crate) fn guarded<T>(&self, work: impl FnOnce() -> T) -> T {
        self.asked.store(false, Ordering::SeqCst);
        self.deadly.store(false, Ordering::SeqCst);
        let result = work();
        self.deadly.store(true, Ordering::SeqCst);
        result
    }

    /// Whether a signal has come since the guarded work began.
    pub(crate) fn asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }
}
