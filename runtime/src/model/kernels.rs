//! The kernels of a bundle on the device, by the keys of its manifest.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use super::error::ModelError;
use super::options::{KvFormat, Progress};
use crate::bundle::{Bundle, GemmRecord, GemvRecord, Reader};
use crate::npu::{Buffer, CommandId, KernelId, Kernels, Weights};

/// A matrix product: one stream for each number of row chunks.
#[derive(Clone, Debug)]
pub(super) struct Gemm {
    pub(super) record: GemmRecord,
    kernels: Vec<KernelId>,
}

impl Gemm {
    /// Rows that the longest stream takes.
    pub(super) fn max_rows(&self) -> usize {
        self.kernels.len() * self.record.m
    }

    /// The stream of one chunk.
    pub(super) fn one_chunk(&self) -> Result<KernelId, ModelError> {
        let none = || ModelError::Shape(format!("gemm `{}` has no stream", self.record.key));
        self.kernels.first().copied().ok_or_else(none)
    }

    /// Elements that the streams of up to `chunks` chunks read of A.
    pub(super) fn a_elems(&self, chunks: usize) -> usize {
        self.record.chunks.iter().take(chunks).map(|c| c.a_elems).max().unwrap_or(0)
    }

    /// Elements that the streams of up to `chunks` chunks write of C.
    pub(super) fn c_elems(&self, chunks: usize) -> usize {
        self.record.chunks.iter().take(chunks).map(|c| c.c_elems).max().unwrap_or(0)
    }
}

/// Kernels that follow each other without a wait in between have to be in one context: only there one command ends
/// before the next begins.
pub(super) fn in_one_context<'a>(what: &str, gemms: impl IntoIterator<Item = &'a Gemm>) -> Result<(), ModelError> {
    let mut first: Option<(&str, &str)> = None;
    for gemm in gemms {
        for ctx in gemm.record.chunks.iter().map(|chunk| &*chunk.ctx) {
            let (key, known) = *first.get_or_insert((&gemm.record.key, ctx));
            if known != ctx {
                return Err(ModelError::Shape(format!(
                    "gemm `{key}` is in context `{known}`, `{}` in `{ctx}`: all kernels of a {what} have to be in one",
                    gemm.record.key
                )));
            }
        }
    }
    Ok(())
}

/// A matrix by vector product.
#[derive(Clone, Debug)]
pub(super) struct Gemv {
    pub(super) record: GemvRecord,
    pub(super) kernel: KernelId,
}

/// The kernels of a bundle by key.
#[derive(Debug, Default)]
pub(super) struct Table {
    gemms: BTreeMap<String, Gemm>,
    gemvs: BTreeMap<String, Gemv>,
}

impl Table {
    pub(super) fn gemm(&self, key: &str) -> Result<Gemm, ModelError> {
        self.gemms.get(key).cloned().ok_or_else(|| ModelError::Shape(format!("there is no gemm `{key}`")))
    }

    pub(super) fn gemv(&self, key: &str) -> Result<Gemv, ModelError> {
        self.gemvs.get(key).cloned().ok_or_else(|| ModelError::Shape(format!("there is no gemv `{key}`")))
    }

    /// Makes the hardware contexts, in the order of their keys, each followed by its streams.
    pub(super) fn load(
        bundle: &Bundle,
        vision: bool,
        kernels: &mut Kernels,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Table, ModelError> {
        let manifest = &bundle.manifest;
        let gemms = || manifest.gemms.values().filter(|g| vision || !g.key.starts_with("v_"));
        let total = gemms().map(|g| g.chunks.len()).sum::<usize>() + manifest.gemvs.len();
        let mut done = 0;
        let mut streams: BTreeMap<(&str, usize), KernelId> = BTreeMap::new();
        let mut table = Table::default();
        for key in manifest.xclbins.keys() {
            let chunks = gemms().flat_map(|g| g.chunks.iter().enumerate().map(move |(n, c)| (g, n, c)));
            let chunks: Vec<_> = chunks.filter(|(_, _, c)| c.ctx == *key).collect();
            let gemvs: Vec<_> = manifest.gemvs.values().filter(|g| g.ctx == *key).collect();
            let operations = match (chunks.first(), gemvs.first()) {
                (Some((g, _, _)), _) => giga(2 * g.m * g.k * g.n),
                (None, Some(g)) => giga(2 * g.m * g.k),
                (None, None) => continue,
            };
            let context = kernels.add_context(key, bundle.xclbin(key)?, operations)?;
            for (gemm, n, chunk) in chunks {
                let name = format!("{} x{}", gemm.key, n + 1);
                let id = kernels.add_stream(context, &name, &bundle.stream(&chunk.insts)?)?;
                streams.insert((&gemm.key, n), id);
                done += 1;
                progress(Progress::Kernels { done, total });
            }
            for gemv in gemvs {
                let name = format!("gemv {}", gemv.key);
                let kernel = kernels.add_stream(context, &name, &bundle.stream(&gemv.insts)?)?;
                table.gemvs.insert(gemv.key.clone(), Gemv { record: gemv.clone(), kernel });
                done += 1;
                progress(Progress::Kernels { done, total });
            }
        }
        for gemm in gemms() {
            let ids: Option<Vec<_>> =
                (0..gemm.chunks.len()).map(|n| streams.get(&(gemm.key.as_str(), n)).copied()).collect();
            let missing =
                || ModelError::Shape(format!("a stream of gemm `{}` names no xclbin of the bundle", gemm.key));
            let kernels = ids.filter(|ids| !ids.is_empty()).ok_or_else(missing)?;
            table.gemms.insert(gemm.key.clone(), Gemm { record: gemm.clone(), kernels });
        }
        Ok(table)
    }
}

/// Rounded to 10^9 operations.
fn giga(operations: usize) -> u32 {
    ((operations + 500_000_000) / 1_000_000_000) as u32
}

/// A weight on the device, with the commands that use it.
#[derive(Debug)]
pub(super) struct Linear {
    weights: Weights,
    /// By lane and number of chunks less one, made at first use.
    gemm: Vec<Option<CommandId>>,
    gemv: Option<CommandId>,
}

impl Linear {
    pub(super) fn new(weights: Weights) -> Linear {
        Linear { weights, gemm: Vec::new(), gemv: None }
    }

    /// The packed weights.
    pub(super) fn weights(&self) -> &Weights {
        &self.weights
    }

    /// The command that runs `rows` rows in a lane: A from element `a.1` of a buffer on, C to the start of another. The
    /// buffers have to be the same at every call for the same lane.
    pub(super) fn gemm(
        &mut self,
        kernels: &mut Kernels,
        gemm: &Gemm,
        (lane, rows): (usize, usize),
        a: (&Buffer, usize),
        c: &Buffer,
    ) -> Result<CommandId, ModelError> {
        let chunks = rows.div_ceil(gemm.record.m).max(1);
        let (Some(&kernel), Some(stream)) = (gemm.kernels.get(chunks - 1), gemm.record.chunks.get(chunks - 1)) else {
            return Err(ModelError::Shape(format!("gemm `{}` has no stream for {rows} rows", gemm.record.key)));
        };
        if a.1 + stream.a_elems > a.0.len() || stream.c_elems > c.len() {
            return Err(ModelError::Shape(format!("gemm `{}` reaches past its buffers", gemm.record.key)));
        }
        let place = lane * gemm.kernels.len() + chunks - 1;
        if self.gemm.len() <= place {
            self.gemm.resize((lane + 1) * gemm.kernels.len(), None);
        }
        if let Some(command) = self.gemm[place] {
            return Ok(command);
        }
        let command = kernels.bind(kernel, &[a.0.input(a.1)?, self.weights.view()?, c.output()?])?;
        self.gemm[place] = Some(command);
        Ok(command)
    }

    /// The command that multiplies the vector from element `x.1` of a buffer on.
    pub(super) fn gemv(
        &mut self,
        kernels: &mut Kernels,
        gemv: &Gemv,
        x: (&Buffer, usize),
        y: &Buffer,
    ) -> Result<CommandId, ModelError> {
        if let Some(command) = self.gemv {
            return Ok(command);
        }
        let command = kernels.bind(gemv.kernel, &[x.0.input(x.1)?, self.weights.view()?, y.output()?])?;
        self.gemv = Some(command);
        Ok(command)
    }
}

/// Uploads weights and says how far it has come.
pub(super) struct Uploader<'a> {
    pub(super) bundle: &'a Bundle,
    pub(super) kernels: &'a Kernels,
    /// What attention layers keep keys and values as.
    pub(super) kv: KvFormat,
    reader: Reader<'a>,
    /// Tensors that are in place already.
    known: BTreeMap<String, Weights>,
    /// Tensors whose buffers are there and empty.
    pending: Vec<(String, Weights)>,
    done: u64,
    total: u64,
    progress: &'a mut dyn FnMut(Progress),
}

impl<'a> Uploader<'a> {
    /// For weights of `total` bytes.
    pub(super) fn new(
        bundle: &'a Bundle,
        kernels: &'a Kernels,
        kv: KvFormat,
        total: u64,
        progress: &'a mut dyn FnMut(Progress),
    ) -> Self {
        let (known, pending) = (BTreeMap::new(), Vec::new());
        Uploader { bundle, kernels, kv, reader: bundle.reader(), known, pending, done: 0, total, progress }
    }

    /// Takes over tensors that somebody has uploaded already.
    pub(super) fn take_over(&mut self, known: BTreeMap<String, Weights>) {
        self.known.extend(known);
    }

    /// A weight, whose bytes come with [`Uploader::finish`].
    pub(super) fn linear(&mut self, name: &str) -> Result<Linear, ModelError> {
        // A missing tensor is found by reading it.
        let bytes = self.bundle.tensor_bytes(name).unwrap_or(1);
        if let Some(weights) = self.known.remove(name) {
            self.done += bytes as u64;
            return Ok(Linear::new(weights));
        }
        let weights = Weights::unfilled(self.kernels.npu().device(), bytes)?;
        self.pending.push((name.to_owned(), weights.clone()));
        Ok(Linear::new(weights))
    }

    /// Reads all weights, and writes each piece back to memory as soon as it is read.
    pub(super) fn finish(&mut self) -> Result<(), ModelError> {
        let Uploader { reader, pending, done, total, progress, .. } = self;
        let waiting: u64 = pending.iter().map(|(_, weights)| weights.len() as u64).sum();
        let (done, total) = (*done, (*total).max(*done + waiting));
        progress(Progress::Weights { done, total });
        let mut places = pending.iter().map(|(_, weights)| weights.fill()).collect::<Result<Vec<_>, _>>()?;
        let tensors = pending.iter().zip(&mut places).map(|((name, _), place)| (name.as_str(), &mut place[..]));
        let failed = Mutex::new(None);
        let flush = |index: usize, range: Range<usize>| {
            if let Some(Err(error)) = pending.get(index).map(|(_, weights)| weights.flush(range)) {
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
        };
        reader.read_many(tensors.collect(), &flush, &mut |bytes| {
            progress(Progress::Weights { done: done + bytes, total });
        })?;
        drop(places);
        pending.clear();
        failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), |error| Err(error.into()))
    }

    pub(super) fn f32s(&self, name: &str) -> Result<Vec<f32>, ModelError> {
        Ok(self.reader.f32s(name)?)
    }
}
