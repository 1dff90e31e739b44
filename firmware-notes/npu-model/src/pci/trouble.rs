//! Faults that only a device on a bus can show: a firmware that answers nothing any more, one that does not start
//! again. Each shows once; a start of the firmware ends it. And how an error of the array is told.

use super::guest::GuestMemory;
use super::messages::opcode;
use crate::config::Faults;
use crate::firmware::ArrayError;

/// Module of an error entry (`aie2_error.c`): a core.
const MODULE_CORE: u32 = 1;

/// Which faults are showing.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    silent: bool,
    silence_shown: bool,
    /// The last management message was SUSPEND.
    suspending: bool,
    /// Power went off after SUSPEND.
    slept: bool,
    sleep_shown: bool,
}

impl Trouble {
    /// Whether the firmware answers nothing, `commands` being how many it has run.
    pub(super) fn is_silent(&mut self, faults: &Faults, commands: u64) -> bool {
        if !self.silence_shown && faults.silent_from.is_some_and(|from| commands >= from) {
            self.silence_shown = true;
            self.silent = true;
        }
        self.silent
    }

    /// A management message came.
    pub(super) fn told(&mut self, message: u32) {
        self.suspending = message == opcode::SUSPEND;
    }

    /// Power went off.
    pub(super) fn power_off(&mut self) {
        self.slept = self.suspending;
    }

    /// The security processor was told to start the firmware; whether it comes alive.
    pub(super) fn starts(&mut self, faults: &Faults) -> bool {
        self.silent = false;
        if faults.no_resume && std::mem::take(&mut self.slept) && !self.sleep_shown {
            self.sleep_shown = true;
            return false;
        }
        true
    }
}

/// Writes an error as an entry of the buffer that the driver has parked for it.
pub(super) fn write_error(guest: &GuestMemory, buffer: u64, error: &ArrayError) -> bool {
    let mut bytes = [0; 24];
    // Count, return code, reserved; then row, column, module and event.
    bytes[0] = 1;
    bytes[12] = error.row;
    bytes[13] = error.column;
    bytes[16..20].copy_from_slice(&MODULE_CORE.to_le_bytes());
    bytes[20] = error.event;
    guest.write(buffer, &bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_lasts_until_the_next_start_and_comes_once() {
        let faults = Faults { silent_from: Some(3), ..Faults::default() };
        let mut trouble = Trouble::default();
        assert!(!trouble.is_silent(&faults, 2));
        assert!(trouble.is_silent(&faults, 3));
        assert!(trouble.starts(&faults));
        assert!(!trouble.is_silent(&faults, 4));
    }

    #[test]
    fn only_a_start_after_a_suspend_fails_and_only_once() {
        let faults = Faults { no_resume: true, ..Faults::default() };
        let mut trouble = Trouble::default();
        // The driver's probe: power off and on, a start, SUSPEND and RESUME.
        trouble.power_off();
        assert!(trouble.starts(&faults));
        trouble.told(opcode::SUSPEND);
        trouble.told(opcode::RESUME);
        trouble.power_off();
        assert!(trouble.starts(&faults));
        trouble.told(opcode::SUSPEND);
        trouble.power_off();
        assert!(!trouble.starts(&faults));
        trouble.told(opcode::SUSPEND);
        trouble.power_off();
        assert!(trouble.starts(&faults));
    }
}
