//! Buffers of activations: rows of bf16 or f32 that the NPU and the host both see.
//!
//! While a command is in flight its buffers refuse the host ([`NpuError::Driver`] with
//! [`InUse`](amdxdna_ioctl::Error::InUse)): wait for it first, or work on another buffer.
//!
//! The host writes back exactly the cache lines that it wrote and drops exactly those that it is about to read. A new
//! buffer is written back whole, once: the kernel's zeroes are dirty lines that could be evicted over the NPU's results.

use std::ops::Range;
use std::sync::Arc;

use amdxdna_ioctl::{Access, Bo, BoKind, Device, HostRead, HostWrite, SharedBo, View};
use half::bf16;
use half::slice::HalfBitsSliceExt;
use host_ops::pool::Pool;
use host_ops::rows::{Rows, RowsMut};

use super::error::NpuError;

/// What an activation buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// The upper half of an f32, rounded to nearest even.
    Bf16,
    /// f32: a test format of the software NPU.
    F32,
}

impl Element {
    /// Bytes of one.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Element::Bf16 => 2,
            Element::F32 => 4,
        }
    }
}

/// Brings a row of sums up to date and makes another of it.
type MakeRow<'a> = dyn Fn(usize, &mut [f32], &mut [f32]) + Sync + 'a;

/// Bytes that the NPU only reads: packed weights. A copy is another handle to the same buffer.
#[derive(Clone, Debug)]
pub struct Weights {
    bo: Arc<SharedBo>,
}

impl Weights {
    /// A buffer of `bytes` that `fill` writes, written back to memory whole.
    ///
    /// # Errors
    /// What the driver refused, or what `fill` says.
    pub fn new<E: From<NpuError>>(
        device: &Arc<Device>,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<Weights, E> {
        let mut filled = Ok(());
        let bo = Bo::filled(device, BoKind::Share, bytes, |out| {
            filled = fill(out);
            Ok::<(), amdxdna_ioctl::Error>(())
        });
        filled?;
        Ok(Weights { bo: SharedBo::new(bo.map_err(NpuError::from)?) })
    }

    /// A buffer of `bytes` that is filled later, by [`Weights::fill`], before a command reads it.
    ///
    /// # Errors
    /// What the driver refused.
    pub fn unfilled(device: &Arc<Device>, bytes: usize) -> Result<Weights, NpuError> {
        Ok(Weights { bo: SharedBo::new(Bo::unwritten(device, bytes)?) })
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bo.size()
    }

    /// Whether there are none, which no driver grants.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, to be written. [`Weights::flush`] what has been.
    ///
    /// # Errors
    /// A command in flight that reads it.
    pub fn fill(&self) -> Result<HostWrite<'_>, NpuError> {
        Ok(self.bo.write()?)
    }

    /// Writes a range of bytes back to memory.
    ///
    /// # Errors
    /// A range past the end; a process that has forked.
    pub fn flush(&self, range: Range<usize>) -> Result<(), NpuError> {
        Ok(self.bo.flush(range)?)
    }

    /// All of it, to be read.
    ///
    /// # Errors
    /// None in practice: the whole is always there.
    pub fn view(&self) -> Result<View, NpuError> {
        Ok(self.bo.view(.., Access::Read)?)
    }

    /// The bytes, which nobody changes any more.
    ///
    /// # Errors
    /// None in practice: no command is bound to write them.
    pub fn read(&self) -> Result<HostRead<'_>, NpuError> {
        Ok(self.bo.read()?)
    }
}

/// A row-major buffer of activations.
#[derive(Debug)]
pub struct Buffer {
    bo: Arc<SharedBo>,
    element: Element,
    len: usize,
}

impl Buffer {
    /// A buffer of `len` zeroes.
    ///
    /// # Errors
    /// What the driver refused.
    pub fn new(device: &Arc<Device>, element: Element, len: usize) -> Result<Buffer, NpuError> {
        let bo = Bo::new(device, BoKind::Share, len.max(1) * element.bytes())?;
        Ok(Buffer { bo: SharedBo::new(bo), element, len })
    }

    /// Elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The buffer from element `at` on, for a command that reads it.
    ///
    /// # Errors
    /// An element past the end.
    pub fn input(&self, at: usize) -> Result<View, NpuError> {
        Ok(self.bo.view(at.saturating_mul(self.element.bytes()).., Access::Read)?)
    }

    /// The buffer, for a command that writes it.
    ///
    /// # Errors
    /// None in practice: the whole is always there.
    pub fn output(&self) -> Result<View, NpuError> {
        Ok(self.bo.view(.., Access::Write)?)
    }

    fn bytes(&self, elements: Range<usize>) -> Range<usize> {
        elements.start * self.element.bytes()..elements.end * self.element.bytes()
    }

    /// Writes `rows` (`[n, width]`) to the first n rows of `stride` elements and writes their lines back.
    ///
    /// # Errors
    /// A command in flight that uses the buffer; a process that has forked.
    ///
    /// # Panics
    /// If the rows do not fit; shapes are checked when a model is loaded.
    pub fn write_rows(&self, pool: &Pool, stride: usize, width: usize, rows: &[f32]) -> Result<(), NpuError> {
        let n = rows.len() / width;
        let used = self.used(stride, width, n);
        let mut bytes = self.bo.write()?;
        match self.element {
            Element::Bf16 => {
                let out: &mut [bf16] = bytes.slice::<u16>().reinterpret_cast_mut();
                pool.run_chunks(&mut out[..used], stride, &|r, out| {
                    host_ops::bf16::from_f32(&rows[r * width..][..width], &mut out[..width]);
                });
            }
            Element::F32 => {
                let out = bytes.slice::<f32>();
                pool.run_chunks(&mut out[..used], stride, &|r, out| {
                    out[..width].copy_from_slice(&rows[r * width..][..width]);
                });
            }
        }
        self.flush_rows(stride, width, n)
    }

    /// Reads the first rows of `stride` elements: `out` is `[n, width]`.
    ///
    /// # Errors
    /// A command in flight that uses the buffer; a process that has forked.
    ///
    /// # Panics
    /// If there are no such rows.
    pub fn read_rows(&self, pool: &Pool, stride: usize, width: usize, out: &mut [f32]) -> Result<(), NpuError> {
        self.visit_rows(pool, stride, width, out, &host_ops::bf16::to_f32, &|x, out| out.copy_from_slice(x))
    }

    /// Adds the first rows of `stride` elements to `out`, `[n, width]`.
    ///
    /// # Errors
    /// A command in flight that uses the buffer; a process that has forked.
    ///
    /// # Panics
    /// If there are no such rows.
    pub fn add_rows(&self, pool: &Pool, stride: usize, width: usize, out: &mut [f32]) -> Result<(), NpuError> {
        self.visit_rows(pool, stride, width, out, &|x, out| host_ops::bf16::add(out, x), &|x, out| {
            out.iter_mut().zip(x).for_each(|(o, x)| *o += x);
        })
    }

    fn visit_rows(
        &self,
        pool: &Pool,
        stride: usize,
        width: usize,
        out: &mut [f32],
        half: &(dyn Fn(&[bf16], &mut [f32]) + Sync),
        full: &(dyn Fn(&[f32], &mut [f32]) + Sync),
    ) -> Result<(), NpuError> {
        let n = out.len() / width;
        self.used(stride, width, n);
        let bytes = self.bo.read()?;
        self.flush_rows(stride, width, n)?;
        match self.element {
            Element::Bf16 => {
                let rows: &[bf16] = bytes.slice::<u16>().reinterpret_cast();
                pool.run_chunks(out, width, &|r, out| half(&rows[r * stride..][..width], out));
            }
            Element::F32 => {
                let rows = bytes.slice::<f32>();
                pool.run_chunks(out, width, &|r, out| full(&rows[r * stride..][..width], out));
            }
        }
        Ok(())
    }

    /// The first `n` rows of `stride` elements, to read for as long as this is held.
    ///
    /// # Errors
    /// A command in flight that uses the buffer; a process that has forked.
    ///
    /// # Panics
    /// If there are no such rows.
    pub fn source(&self, stride: usize, width: usize, n: usize) -> Result<Source<'_>, NpuError> {
        self.used(stride, width, n);
        let bytes = self.bo.read()?;
        self.flush_rows(stride, width, n)?;
        Ok(Source { bytes, element: self.element, stride })
    }

    /// Has `fill` write the first `n` rows of `stride` elements, `width` of each, and writes their lines back.
    ///
    /// # Errors
    /// A command in flight that uses the buffer; a process that has forked.
    ///
    /// # Panics
    /// If the rows do not fit.
    pub fn fill_rows(
        &self,
        stride: usize,
        width: usize,
        n: usize,
        fill: impl FnOnce(RowsMut<'_>),
    ) -> Result<(), NpuError> {
        let used = self.used(stride, width, n);
        let mut bytes = self.bo.write()?;
        fill(rows_mut(&mut bytes, self.element, stride, used));
        self.flush_rows(stride, width, n)
    }

    /// In one pass over rows of `width`: `make(r, sum, row)` brings a row of `sums` up to date and makes one of `rows` of
    /// it, which is written to the buffer.
    ///
    /// # Errors
    /// A command in flight that uses the buffer; a process that has forked.
    ///
    /// # Panics
    /// If the rows do not fit.
    pub fn make_rows(
        &self,
        pool: &Pool,
        stride: usize,
        width: usize,
        (sums, rows): (&mut [f32], &mut [f32]),
        make: &MakeRow<'_>,
    ) -> Result<(), NpuError> {
        assert_eq!(sums.len(), rows.len(), "sums and rows");
        self.fill_rows(stride, width, rows.len() / width, |out| match out {
            RowsMut::Half(out, _) => {
                pool.run_chunks3((sums, width), (rows, width), (out, stride), &|r, sum, row, out| {
                    make(r, sum, row);
                    host_ops::bf16::from_f32(row, &mut out[..width]);
                });
            }
            RowsMut::Full(out, _) => {
                pool.run_chunks3((sums, width), (rows, width), (out, stride), &|r, sum, row, out| {
                    make(r, sum, row);
                    out[..width].copy_from_slice(row);
                });
            }
        })
    }

    /// Changes the first `n` rows where they are.
    ///
    /// # Errors
    /// A command in flight that uses the buffer; a process that has forked.
    ///
    /// # Panics
    /// If there are no such rows.
    pub fn change_rows(
        &self,
        pool: &Pool,
        stride: usize,
        width: usize,
        n: usize,
        change: &(dyn Fn(&mut [f32]) + Sync),
    ) -> Result<(), NpuError> {
        let used = self.used(stride, width, n);
        let mut bytes = self.bo.write()?;
        self.flush_rows(stride, width, n)?;
        match rows_mut(&mut bytes, self.element, stride, used) {
            RowsMut::Half(out, _) => {
                let mut wide = vec![vec![0.0; width]; pool.threads()];
                pool.run_chunks_with(&mut wide, (out, stride), &|wide, _, out| {
                    host_ops::bf16::to_f32(&out[..width], wide);
                    change(wide);
                    host_ops::bf16::from_f32(wide, &mut out[..width]);
                });
            }
            RowsMut::Full(out, _) => pool.run_chunks(out, stride, &|_, out| change(&mut out[..width])),
        }
        self.flush_rows(stride, width, n)
    }

    /// Elements up to the end of row `n`.
    fn used(&self, stride: usize, width: usize, n: usize) -> usize {
        assert!(width <= stride && n > 0, "{width} values in a row of {stride}");
        let used = (n - 1) * stride + width;
        assert!(used <= self.len, "{used} elements in a buffer of {}", self.len);
        used
    }

    fn flush_rows(&self, stride: usize, width: usize, n: usize) -> Result<(), NpuError> {
        if stride == width {
            return Ok(self.bo.flush(self.bytes(0..n * width))?);
        }
        for r in 0..n {
            self.bo.flush(self.bytes(r * stride..r * stride + width))?;
        }
        Ok(())
    }
}

/// The first elements of a buffer as rows.
fn rows_mut<'a>(bytes: &'a mut HostWrite<'_>, element: Element, stride: usize, used: usize) -> RowsMut<'a> {
    match element {
        Element::Bf16 => {
            let out: &mut [bf16] = bytes.slice::<u16>().reinterpret_cast_mut();
            RowsMut::Half(&mut out[..used], stride)
        }
        Element::F32 => RowsMut::Full(&mut bytes.slice::<f32>()[..used], stride),
    }
}

/// Rows of a buffer while the host reads them.
#[derive(Debug)]
pub struct Source<'a> {
    bytes: HostRead<'a>,
    element: Element,
    stride: usize,
}

impl Source<'_> {
    /// The rows.
    #[must_use]
    pub fn rows(&self) -> Rows<'_> {
        match self.element {
            Element::Bf16 => Rows::Half(self.bytes.slice::<u16>().reinterpret_cast(), self.stride),
            Element::F32 => Rows::Full(self.bytes.slice::<f32>(), self.stride),
        }
    }

    /// Adds the beginning of a row to `out`.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn add(&self, row: usize, out: &mut [f32]) {
        match self.rows() {
            Rows::Half(x, stride) => host_ops::bf16::add(out, &x[row * stride..][..out.len()]),
            Rows::Full(x, stride) => out.iter_mut().zip(&x[row * stride..]).for_each(|(o, x)| *o += x),
        }
    }
}
