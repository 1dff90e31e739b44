//! What the driver last complained of in the kernel's log: the reason behind an errno.

use super::report::{Findings, Verdict};
use crate::error::one_line;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;

/// Lines of it that are shown.
const LINES: usize = 5;
/// The kernel's own `KERN_ERR`; smaller is worse, and what programs wrote is larger. Among the driver's warnings is what
/// is none, such as the way that it addresses memory.
const ERROR: u32 = 3;
/// Longer than any record.
const RECORD: usize = 16 << 10;

/// Adds the driver's last complaints where a finding from number `begun` on has failed, or would have.
pub(super) fn told(findings: &mut Findings, begun: usize) {
    let ill = |what: &str| matches!(what, "device" | "context" | "memory" | "loading" | "dispatch" | "token");
    // Of permissions the driver knows nothing.
    let asked = findings.0[begun.min(findings.0.len())..].iter().any(|finding| {
        matches!(finding.verdict, Verdict::Fail | Verdict::Warn)
            && ill(finding.what)
            && !finding.text.starts_with("no permission")
    });
    if !asked {
        return;
    }
    match records() {
        Ok(records) => {
            for line in complaints(&records) {
                findings.warn("kernel log", &line, "");
            }
        }
        Err(error) => {
            let what = one_line(&error);
            findings.skip(
                "kernel log",
                &format!("/dev/kmsg: {what}: sudo dmesg | grep -i amdxdna shows what the driver says"),
            );
        }
    }
}

/// All records of the log.
fn records() -> io::Result<Vec<String>> {
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    read(File::options().read(true).custom_flags(flags).open("/dev/kmsg")?)
}

/// One record comes with each read.
fn read(mut log: impl Read) -> io::Result<Vec<String>> {
    let mut records = Vec::new();
    let mut record = vec![0; RECORD];
    loop {
        match log.read(&mut record) {
            Ok(0) => return Ok(records),
            Ok(count) => records.push(String::from_utf8_lossy(&record[..count]).into_owned()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(records),
            // A signal; or the record has been overwritten meanwhile (EPIPE), and the next read gives a later one.
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::BrokenPipe) => {}
            Err(error) => return Err(error),
        }
    }
}

/// The last of the driver's errors, in the order that they came in, each once.
fn complaints(records: &[String]) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for record in records.iter().rev() {
        // `6,339,5140900,-;text`, and lines that begin with a space.
        let Some((head, rest)) = record.split_once(';') else { continue };
        let mut head = head.split(',');
        let priority = head.next().and_then(|text| text.parse::<u32>().ok());
        // A tab comes escaped.
        let text = rest.lines().next().unwrap_or_default().replace("\\x09", " ");
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        if priority.is_none_or(|priority| priority > ERROR) || !text.to_lowercase().contains("amdxdna") {
            continue;
        }
        let seconds = head.nth(1).and_then(|text| text.parse::<u64>().ok()).unwrap_or_default() / 1_000_000;
        let (line, end) = (format!("{seconds} s after the start: {text}"), format!(": {text}"));
        if !found.iter().any(|earlier| earlier.ends_with(&end)) {
            found.push(line);
        }
        if found.len() == LINES {
            break;
        }
    }
    found.reverse();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    struct Log(VecDeque<Result<&'static str, ErrorKind>>);

    impl Read for Log {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            match self.0.pop_front().unwrap_or(Err(ErrorKind::WouldBlock)) {
                Ok(text) => {
                    to[..text.len()].copy_from_slice(text.as_bytes());
                    Ok(text.len())
                }
                Err(kind) => Err(kind.into()),
            }
        }
    }

    #[test]
    fn the_drivers_last_complaints_are_shown_once_each() {
        let of = |text: &'static str| Ok(text);
        let log = Log(VecDeque::from([
            of("3,1,900000,-;amdxdna 0000:00:01.0: one too many\n"),
            of("3,1,950000,-;amdxdna 0000:00:01.0: zeroth\n"),
            of("3,1,1000000,-;amdxdna 0000:00:01.0: [drm] *ERROR* first\n SUBSYSTEM=pci\n DEVICE=+pci:0000:00:01.0\n"),
            Err(ErrorKind::BrokenPipe),
            of("3,2,2000000,-;amdxdna 0000:00:01.0: [drm] *ERROR* second\n"),
            Err(ErrorKind::Interrupted),
            of("4,3,2500000,-;amdxdna 0000:00:01.0: [drm] amdxdna_iommu_init: Enabled force_iova mode.\n"),
            of("3,4,3000000,-;amdxdna 0000:00:01.0: third\n"),
            of("2,4,3200000,-;amdxdna 0000:00:01.0: \\x09fourth\n"),
            of("3,5,3500000,-;other 0000:00:02.0: not ours\n SUBSYSTEM=amdxdna\n"),
            of("3,6,9500000,-;amdxdna 0000:00:01.0: [drm] *ERROR* second\n"),
            of("11,7,9600000,-;AMDXDNA of user space\n"),
            of("no record"),
        ]));
        let lines = complaints(&read(log).unwrap());
        assert_eq!(
            lines,
            [
                "0 s after the start: amdxdna 0000:00:01.0: zeroth",
                "1 s after the start: amdxdna 0000:00:01.0: [drm] *ERROR* first",
                "3 s after the start: amdxdna 0000:00:01.0: third",
                "3 s after the start: amdxdna 0000:00:01.0: fourth",
                "9 s after the start: amdxdna 0000:00:01.0: [drm] *ERROR* second",
            ]
        );
        assert!(read(Log(VecDeque::from([Err(ErrorKind::PermissionDenied)]))).is_err());
    }

    #[test]
    fn the_log_is_asked_only_where_the_device_failed() {
        let mut findings = Findings::default();
        findings.fail("bundle", "a byte is wrong");
        findings.fail("device", "no permission to open /dev/accel/accel0");
        told(&mut findings, 0);
        assert_eq!(findings.0.len(), 2);
    }
}
