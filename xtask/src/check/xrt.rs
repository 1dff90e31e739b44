//! Debian's XRT beside us: what its `xrt-smi` and our `devices` say of the same virtual NPU under the same driver.

use super::{Outcome, Tally};
use crate::vm::{self, Scenario, Step};
use std::path::Path;

/// What XRT calls an NPU4.
const NAME: &str = "RyzenAI-npu4";

pub(super) fn run(root: &Path) -> Outcome {
    if let Err(why) = vm::available() {
        return Outcome::Skip(why);
    }
    for fetched in [vm::fetched(root), vm::fetched_xrt(root)] {
        match fetched {
            Ok(Ok(())) => {}
            Ok(Err(why)) => return Outcome::Skip(why),
            Err(why) => return Outcome::Fail(Tally::ONE_FAILED, why),
        }
    }
    match compared(root) {
        Ok(()) => Outcome::Pass(Tally::ONE_PASSED),
        Err(why) => Outcome::Fail(Tally::ONE_FAILED, why),
    }
}

fn compared(root: &Path) -> Result<(), String> {
    let binary = vm::static_binary_of(root)?;
    let examine = [vm::XRT_PROGRAM, "examine"].map(str::to_owned).to_vec();
    let steps = vec![Step::Run(vec!["devices".to_owned()]), Step::Program(examine)];
    let ended = vm::scenario(Scenario { binary, xrt: true, steps, ..Scenario::default() })?;
    crate::print(&format!("{:.1} s, boot to power-off\n", ended.seconds));
    for done in &ended.done {
        crate::print(&format!("{done}\n{}", done.stdout));
        if !done.is_fine() {
            return Err(format!("{done}: {}", done.stderr.trim()));
        }
    }
    let [ours, theirs] = &ended.done[..] else { return Err("the machine ended early".into()) };
    agree(&ours.stdout, &theirs.stdout)
}

/// Whether both list one NPU, with the same firmware and as many columns.
fn agree(ours: &str, theirs: &str) -> Result<(), String> {
    let row = theirs.lines().find(|line| line.contains(NAME)).ok_or(format!("xrt-smi lists no {NAME}"))?;
    // The table's last column: rows x columns.
    let (_, columns) = row
        .split(['|', ' '])
        .find_map(|word| word.split_once('x').filter(|(rows, _)| rows.parse::<u32>().is_ok()))
        .ok_or(format!("xrt-smi says nothing of rows and columns: {row}"))?;
    let firmware = theirs
        .lines()
        .find_map(|line| line.trim().strip_prefix("NPU Firmware Version")?.split_once(':'))
        .map(|(_, version)| version.trim())
        .ok_or("xrt-smi says nothing of the firmware's version")?;
    for said in [format!("firmware {firmware}:"), format!(" {columns} columns")] {
        if !ours.contains(&said) {
            return Err(format!("xrt-smi has {said:?}, `devices` has not: {ours}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_found() {
        let theirs = "  NPU Firmware Version : 1.5.2.1\n|BDF|Name|\n|[0000:00:02.0]  |RyzenAI-npu4  |aie2p  |6x8  |\n";
        let ours = "/dev/accel/accel0  NPU, firmware 1.5.2.1: can be opened, 8 columns, driver 0.10\n";
        assert_eq!(agree(ours, theirs), Ok(()));
        assert!(agree(&ours.replace("8 columns", "4 columns"), theirs).is_err());
        assert!(agree(&ours.replace("2.1", "2.12"), theirs).is_err());
        assert!(agree(ours, &theirs.replace("npu4", "npu1")).is_err());
        assert!(agree(ours, "").is_err());
    }
}
