//! What a stream moves and computes, without doing it.

use std::collections::BTreeMap;

use super::kernel::{BARRIER, GemmJob, GemvJob, Job, Kernel, Kind, PARAMETER_ADDRESS, PARAMETERS, element_bytes, job};
use super::run::{CORE_ROW, Place};
use super::shim::COLUMNS;
use super::txn::Op;
use super::{Array, Contract, Epilogue, Fault, Format, contract_of, each, opaque};
use crate::timing::Cost;

impl Array {
    /// The cost of an instruction stream with so many buffer arguments.
    ///
    /// # Errors
    /// A stream that makes no sense, or that nothing is known of.
    pub(crate) fn cost(
        &self,
        stream: &[u8],
        args: usize,
        contracts: &dyn Fn([u8; 32]) -> Option<Contract>,
    ) -> Result<Cost, Fault> {
        let mut index = 0;
        let result = match self.kernel {
            Kernel::Reference(kind) => {
                let mut scan = Scan::new(kind);
                each(stream, &mut index, &mut |op| scan.op(op)).and_then(|()| scan.end())
            }
            Kernel::Opaque(pdi) => each(stream, &mut index, &mut |op| opaque::check(op, args)).and_then(|()| {
                if index == 0 {
                    return Ok(Cost::default());
                }
                Ok(of_contract(&contract_of(stream, &pdi, contracts)?))
            }),
        };
        result.map_err(|what| Fault { op_index: index as u32, what, hangs: false })
    }
}

/// Reads a reference kernel's runtime parameters out of its stream.
struct Scan {
    kind: Kind,
    core_memory: BTreeMap<u32, u32>,
    released: [[Option<[u32; PARAMETERS]>; 4]; COLUMNS],
    cost: Cost,
}

impl Scan {
    fn new(kind: Kind) -> Self {
        Self { kind, core_memory: BTreeMap::new(), released: Default::default(), cost: Cost::default() }
    }

    fn op(&mut self, op: Op<'_>) -> Result<(), String> {
        match op {
            Op::Write { addr, value } => self.write(addr, value),
            Op::BlockWrite { addr, data } => {
                for (i, word) in data.as_chunks().0.iter().enumerate() {
                    self.write(addr.wrapping_add(4 * i as u32), u32::from_le_bytes(*word))?;
                }
                Ok(())
            }
            // Whatever was released has to come to its end before the stream goes on.
            Op::Wait { .. } => self.job(),
            _ => Ok(()),
        }
    }

    fn write(&mut self, addr: u32, value: u32) -> Result<(), String> {
        let place = Place::of(addr)?;
        if place.row < CORE_ROW {
            return Ok(());
        }
        if place.offset != BARRIER {
            self.core_memory.insert(addr, value);
            return Ok(());
        }
        let base = addr & !0xF_FFFF | PARAMETER_ADDRESS;
        let mut words = [0; PARAMETERS];
        for (i, word) in words.iter_mut().enumerate() {
            *word = *self.core_memory.get(&(base + 4 * i as u32)).ok_or("a core is released without parameters")?;
        }
        self.released[place.column][place.row - CORE_ROW] = Some(words);
        Ok(())
    }

    fn job(&mut self) -> Result<(), String> {
        if self.released.iter().flatten().all(Option::is_none) {
            return Ok(());
        }
        let one = of_job(&job(self.kind, &std::mem::take(&mut self.released))?);
        let all = &mut self.cost;
        *all = Cost {
            bytes: all.bytes + one.bytes,
            operations: all.operations + one.operations,
            written: all.written + one.written,
            element: one.element,
        };
        Ok(())
    }

    fn end(mut self) -> Result<Cost, String> {
        self.job()?;
        Ok(self.cost)
    }
}

fn of_job(job: &Job) -> Cost {
    match job {
        Job::Gemm(GemmJob { rows, k, n, epilogue, bias, streamed, format }) => {
            let passes = if *streamed { rows / 256 } else { 1 };
            gemm([*rows, *k, *n], *epilogue, *bias, passes, *format)
        }
        Job::Gemv(GemvJob { shares, k, bias, format, .. }) => gemv([shares.iter().sum(), *k], *bias, *format),
    }
}

fn of_contract(contract: &Contract) -> Cost {
    match contract {
        Contract::Gemm(c) => gemm([c.m * c.chunks, c.k, c.n], c.epilogue, c.bias, 1, c.format),
        Contract::Gemv(c) => gemv([c.m, c.k], c.bias, c.format),
    }
}

/// A once, B `passes` times, C once.
fn gemm([rows, k, n]: [usize; 3], epilogue: Epilogue, bias: bool, passes: usize, format: Format) -> Cost {
    let element = element_bytes(format);
    let results = if epilogue == Epilogue::PairedSwiglu { n / 2 } else { n };
    let weights = format.bytes((k + if bias { 128 } else { 0 }) * n);
    let written = (rows * results * element) as u64;
    Cost {
        bytes: (rows * k * element + passes * weights) as u64 + written,
        operations: 2 * (rows * k) as u64 * n as u64,
        written,
        element,
    }
}

fn gemv([m, k]: [usize; 2], bias: bool, format: Format) -> Cost {
    let element = element_bytes(format);
    let weights = format.bytes(m * (k + if bias { 128 } else { 0 }));
    let written = (m * element) as u64;
    Cost { bytes: (k * element + weights) as u64 + written, operations: 2 * (m * k) as u64, written, element }
}
