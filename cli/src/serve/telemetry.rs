//! What the driver says of the device: contexts, memory, power.

use super::metrics::Page;
use crate::error::one_line;
use amdxdna_ioctl::abi::query::QuerySensor;
use amdxdna_ioctl::{Device, ioctl};

/// How a device was when it was last looked at.
#[derive(Debug, Default)]
pub(super) struct Sample {
    /// Hardware contexts of this process, and of others.
    contexts: Option<(usize, usize)>,
    /// Bytes of this process's buffers.
    memory: Option<u64>,
    /// Label, unit, value.
    sensors: Vec<(String, String, f64)>,
}

impl Sample {
    /// Asks the driver. What it does not tell is left out.
    pub(super) fn of(device: &Device) -> Sample {
        let own = i64::from(std::process::id());
        let contexts = device.contexts().ok().map(|contexts| {
            let ours = contexts.iter().filter(|context| context.pid == own).count();
            (ours, contexts.len() - ours)
        });
        let sensors = device.sensors().unwrap_or_default();
        Sample {
            contexts,
            memory: device.bo_usage().ok().map(|usage| usage.total_usage),
            sensors: sensors.iter().map(reading).collect(),
        }
    }

    pub(super) fn write(&self, page: &mut Page) {
        if let Some((ours, others)) = self.contexts {
            page.head("npu_contexts", "gauge", "Hardware contexts on the NPU.");
            page.value("npu_contexts", "{owner=\"self\"}", ours);
            page.value("npu_contexts", "{owner=\"others\"}", others);
        }
        if let Some(bytes) = self.memory {
            page.one("npu_memory_bytes", "gauge", "Buffers of this process on the NPU.", bytes);
        }
        if !self.sensors.is_empty() {
            page.head("npu_sensor", "gauge", "What the driver's sensors say, in their units.");
            for (label, unit, value) in &self.sensors {
                page.value("npu_sensor", &format!("{{sensor=\"{label}\",unit=\"{unit}\"}}"), value);
            }
        }
    }
}

/// Why nothing more can be done with a device that has been taken away. The question does not wake it.
pub(super) fn gone(device: &Device) -> Option<String> {
    let asked = device.door().map(|door| ioctl::version(door).err().map(|error| one_line(&error)));
    asked.unwrap_or_else(|error| Some(one_line(&error)))
}

fn reading(sensor: &QuerySensor) -> (String, String, f64) {
    (word(&sensor.label()), word(&sensor.unit()), sensor.value())
}

/// A name of the driver's, without what a label could not hold.
fn word(text: &str) -> String {
    text.chars().filter(|c| !c.is_control() && !"\"\\".contains(*c)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::metrics::page_of;

    #[test]
    fn sensors_have_their_units() {
        let mut sensor: QuerySensor = nothing();
        sensor.label[..9].copy_from_slice(b"Total \"Po");
        sensor.units[..2].copy_from_slice(b"mW");
        (sensor.input, sensor.unitm) = (1234, -1);
        let sample = Sample { contexts: Some((3, 1)), memory: Some(7), sensors: vec![reading(&sensor)] };
        let text = page_of(|page| sample.write(page));
        for line in [
            "qwen35_npu_contexts{owner=\"self\"} 3",
            "qwen35_npu_contexts{owner=\"others\"} 1",
            "qwen35_npu_memory_bytes 7",
            "qwen35_npu_sensor{sensor=\"Total Po\",unit=\"mW\"} 123.4",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert_eq!(page_of(|page| Sample::default().write(page)), "");
    }

    fn nothing() -> QuerySensor {
        QuerySensor {
            label: [0; 64],
            input: 0,
            max: 0,
            average: 0,
            highest: 0,
            status: [0; 64],
            units: [0; 16],
            unitm: 0,
            r#type: 0,
            pad: [0; 6],
        }
    }
}
