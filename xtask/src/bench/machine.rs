//! The machine: what it is, and what it can do at best.

use std::fs;

use host_ops::limits;
use host_ops::pool::Pool;
use serde_json::{Value, json};

use super::measure::{Effort, best};

/// Description and limits.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    cpu: String,
    cores: usize,
    memory: f64,
    kernel: String,
    /// Vector extensions that were found.
    vectors: String,
    /// Operations a second with 1, 2, .. threads.
    pub(super) fma: Vec<f64>,
    /// Operations a second of all threads in vectors of eight lanes, those of AVX2.
    eight: f64,
    /// Bytes a second that are read, all threads.
    pub(super) read: f64,
    /// Bytes a second that are read and written by a copy, all threads.
    pub(super) copy: f64,
    /// Bytes a second that are read and written by a change in place, all threads.
    pub(super) update: f64,
}

/// The first value of a key in a file of lines `key : value`.
fn value(path: &str, key: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.split(':').next().is_some_and(|name| name.trim() == key))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// A number of kB from `/proc/meminfo`, in bytes.
pub(super) fn memory(key: &str) -> u64 {
    let kb = value("/proc/meminfo", key).and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    kb.unwrap_or(0) * 1024
}

impl Machine {
    /// Looks, and measures for a second or so.
    pub(super) fn measure(effort: Effort) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let flags = value("/proc/cpuinfo", "flags").unwrap_or_default();
        let vectors = ["avx2", "fma", "avx512f", "avx512_bf16"];
        let found: Vec<&str> = vectors.into_iter().filter(|name| flags.split(' ').any(|flag| flag == *name)).collect();
        let rounds = if effort.quick { 1 << 10 } else { 1 << 22 };
        // Of `rounds` rounds a thread, and the operations of a round.
        let speed = |threads: usize, work: &(dyn Fn() -> usize + Sync)| {
            let pool = Pool::new(threads);
            let mut operations = vec![0; threads];
            let time = best(effort, || pool.run_chunks(&mut operations, 1, &|_, count| count[0] = work()));
            (rounds * operations.iter().sum::<usize>()) as f64 / time
        };
        let all = || {
            let (sum, operations) = limits::multiply_add(rounds);
            std::hint::black_box(sum);
            operations
        };
        let fma = (1..=cores).map(|threads| speed(threads, &all)).collect();
        let eight = speed(cores, &|| {
            std::hint::black_box(limits::multiply_add_eight(rounds));
            limits::OPERATIONS_OF_EIGHT
        });
        let pool = Pool::new(cores);
        // Far larger than any cache.
        let mut from: Vec<f32> = vec![1.0; if effort.quick { 1 << 12 } else { 64 << 20 }];
        let mut to: Vec<f32> = vec![0.0; from.len()];
        let bytes = size_of_val(&from[..]) as f64;
        let mut sum = 0.0;
        let read = bytes / best(effort, || sum += limits::read(&pool, &from));
        std::hint::black_box(sum);
        let copy = 2.0 * bytes / best(effort, || limits::copy(&pool, &from, &mut to));
        let update = 2.0 * bytes / best(effort, || limits::update(&pool, &mut from));
        Self {
            cpu: value("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown CPU".into()),
            cores,
            memory: memory("MemTotal") as f64,
            kernel: version(&rustix::system::uname().release().to_string_lossy()),
            vectors: found.join(" "),
            fma,
            eight,
            read,
            copy,
            update,
        }
    }

    /// Takes the better of two measurements: what a machine can do shows when nobody else uses it.
    pub(super) fn improve(&mut self, again: &Self) {
        self.fma.iter_mut().zip(&again.fma).for_each(|(fma, again)| *fma = fma.max(*again));
        self.eight = self.eight.max(again.eight);
        self.read = self.read.max(again.read);
        self.copy = self.copy.max(again.copy);
        self.update = self.update.max(again.update);
    }

    /// Operations a second, all threads.
    pub(super) fn peak(&self) -> f64 {
        self.fma.last().copied().unwrap_or(f64::NAN)
    }

    /// What it is, in a line.
    pub(super) fn line(&self) -> String {
        let gib = self.memory / (1u64 << 30) as f64;
        format!("{}, {} cores ({}), {gib:.0} GiB, Linux {}", self.cpu, self.cores, self.vectors, self.kernel)
    }

    pub(super) fn text(&self) -> String {
        let giga = |value: f64| format!("{:.1}", value / 1e9);
        let fma: Vec<String> = self.fma.iter().map(|value| giga(*value)).collect();
        format!(
            "{}\nlimits: FMA {} GFLOP/s with 1.. threads ({} in eight lanes); read {} GB/s, copy {} GB/s, change in place {} GB/s (read and \
             written)",
            self.line(),
            fma.join(", "),
            giga(self.eight),
            giga(self.read),
            giga(self.copy),
            giga(self.update),
        )
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "cpu": self.cpu, "cores": self.cores, "vectors": self.vectors, "memory_bytes": self.memory,
            "kernel": self.kernel, "fma_flops_by_threads": self.fma, "fma_flops_in_eight_lanes": self.eight, "read_bytes_a_second": self.read,
            "copy_bytes_a_second": self.copy, "update_bytes_a_second": self.update,
        })
    }
}

/// Major and minor version of a kernel's release: the rest names a build, not a machine.
fn version(release: &str) -> String {
    release.split('.').take(2).collect::<Vec<_>>().join(".")
}
