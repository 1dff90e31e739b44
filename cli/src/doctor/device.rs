//! What an open device says of itself.

use super::machine::process;
use super::report::Findings;
use crate::error::one_line;
use amdxdna_ioctl::abi::query::PowerMode;
use amdxdna_ioctl::{Bo, BoKind, Device, HwCtx, HwCtxOptions};
use std::sync::Arc;

/// Asks everything. What an older driver does not know is skipped.
pub(super) fn all(findings: &mut Findings, device: &Arc<Device>) {
    let version = device.version();
    let (major, minor, columns) = (version.major, version.minor, device.columns());
    findings.ok("driver", &format!("amdxdna {major}.{minor}, {columns} columns of {} cores", device.core_rows()));
    match device.firmware_version() {
        Ok(v) => findings.ok("firmware", &format!("{}.{}.{}.{}", v.major, v.minor, v.patch, v.build)),
        // No run asks for it.
        Err(error) => findings.skip("firmware", &one_line(&error)),
    }
    memory(findings, device);
    contexts(findings, device);
    context(findings, device);
    power(findings, device);
    match device.last_async_error() {
        Ok(None) => findings.ok("errors", "the array has raised none since the driver was loaded"),
        Ok(Some(error)) => findings.warn(
            "errors",
            &format!("the array raised an error: {}", one_line(&error)),
            "it is over, unless answers fail too; sudo dmesg | grep -i amdxdna has more",
        ),
        Err(error) => findings.skip("errors", &one_line(&error)),
    }
}

/// A buffer, and how the device sees it.
fn memory(findings: &mut Findings, device: &Arc<Device>) {
    match Bo::new(device, BoKind::Share, 4096) {
        Ok(bo) if bo.address() == bo.as_ptr().addr().get() as u64 => {
            findings.ok("memory", "buffers have the addresses of the process (SVA)");
        }
        Ok(_) => findings.ok("memory", "buffers have addresses of the device's own (IOVA)"),
        Err(error) => findings.fail("memory", &one_line(&error)),
    }
}

/// A context, given back at once: the first thing that takes the firmware itself. All other answers here may be what
/// the driver remembers of a firmware that is silent now.
fn context(findings: &mut Findings, device: &Arc<Device>) {
    match HwCtx::create(device, &HwCtxOptions::default()) {
        Ok(_) => findings.ok("context", "one was made over all columns, and given back"),
        Err(error) => findings.fail("context", &one_line(&error)),
    }
}

/// Who uses it.
fn contexts(findings: &mut Findings, device: &Device) {
    let list = match device.contexts() {
        Ok(list) => list,
        Err(error) => return findings.skip("contexts", &one_line(&error)),
    };
    let mut users: Vec<String> = Vec::new();
    for context in &list {
        let user = format!("{} ({})", process(context.pid), context.pid);
        if !users.contains(&user) {
            users.push(user);
        }
    }
    let of = device.resource_info().ok().map(|info| (info.npu_task_curr, info.npu_task_max));
    let room = of.map_or_else(String::new, |(_, most)| format!(" of {most}"));
    let text = if list.is_empty() {
        format!("0{room} in use")
    } else {
        format!("{}{room} in use, by {}", list.len(), users.join(", "))
    };
    match of {
        // The driver moves whole contexts in and out where there are too many, which takes time.
        Some((now, most)) if most > 0 && now >= most => {
            findings.warn("contexts", &text, "end one of these programs if answers are slow");
        }
        _ => findings.ok("contexts", &text),
    }
}

/// Mode, clocks and temperatures.
fn power(findings: &mut Findings, device: &Device) {
    let mut parts = Vec::new();
    if let Ok(clocks) = device.clocks() {
        for clock in [clocks.mp_npu_clock, clocks.h_clock] {
            parts.push(format!("{} at {} MHz", clock.label(), clock.freq_mhz));
        }
    }
    for sensor in device.sensors().unwrap_or_default() {
        parts.push(format!("{} {:.3} {}", sensor.label(), sensor.value(), sensor.unit()));
    }
    let more = parts.join(", ");
    match device.power_mode() {
        Ok(Ok(mode)) if matches!(mode, PowerMode::Low | PowerMode::Medium) => findings.warn(
            "power",
            &format!("mode {mode:?}; {more}"),
            "the clock is held down: as root, `xrt-smi configure --pmode default` or a reboot lifts that",
        ),
        Ok(Ok(mode)) => findings.ok("power", &format!("mode {mode:?}; {more}")),
        Ok(Err(mode)) => findings.ok("power", &format!("mode {mode}; {more}")),
        Err(error) => findings.skip("power", &one_line(&error)),
    }
}
