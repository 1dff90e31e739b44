//! A trial of what goes beyond the sequence that is known to work on hardware: several commands in flight, waits that
//! look at the state word, prompts in lanes.
//!
//! A small piece of the bundle's own work, the first layer's `down` for tokens and its `o` for prompts, is done on the
//! same vectors both ways: all commands in flight together, then one at a time. The results have to be the same, bit by
//! bit. Vectors are new each time, so that a result that nobody has written shows too.

use std::collections::BTreeMap;
use std::time::Duration;

use host_ops::pool::Pool;

use super::error::ModelError;
use super::kernels::Table;
use super::options::Fallback;
use super::shared::element;
use crate::bundle::Bundle;
use crate::npu::{Buffer, CommandId, Kernels, NpuError, Weights};

/// Rounds of the commands of a token, which take a fraction of a millisecond, and of a prompt, which take more.
const TOKENS: usize = 4;
const PROMPTS: usize = 1;
/// The tensor of the prompt.
const PROMPT: &str = "l0.g.o";
/// Lanes of the prompt.
const LANES: usize = 2;

/// What a trial came to.
#[derive(Debug)]
pub(super) struct Tried {
    /// What speaks against the ways that were tried.
    pub(super) fallback: Option<Fallback>,
    /// The tensors that were uploaded for it.
    pub(super) weights: BTreeMap<String, Weights>,
}

/// Tries the kernels with as many commands in flight as they may have and with waits that look for so long. If
/// something speaks against it nothing may be run with these kernels any more. Nothing of it stays with them otherwise.
///
/// # Errors
/// What the bundle lacks or the device refuses whatever the sequence.
pub(super) fn run(bundle: &Bundle, table: &Table, kernels: &mut Kernels, spin: Duration) -> Result<Tried, ModelError> {
    let slices = (0..bundle.manifest.text.down_slices).map(|s| format!("l0.g.down{s}"));
    let mut weights = BTreeMap::new();
    let reader = bundle.reader();
    for name in slices.chain([PROMPT.to_owned()]) {
        let bytes = bundle.tensor_bytes(&name).unwrap_or(1);
        let fill = |out: &mut [u8]| Ok::<_, ModelError>(reader.read_into(&name, out)?);
        weights.insert(name.clone(), Weights::new(kernels.npu().device(), bytes, fill)?);
    }
    let mark = kernels.mark();
    let result = tokens(bundle, table, kernels, (&weights, spin))
        .and_then(|same| Ok(same && prompts(bundle, table, kernels, (&weights, spin))?));
    kernels.forget_since(mark);
    let fallback = match result {
        Ok(true) => None,
        Ok(false) => Some(Fallback::Differs),
        Err(ModelError::Npu(NpuError::Command { .. })) => Some(Fallback::Failed),
        Err(ModelError::Npu(NpuError::Timeout { .. })) => Some(Fallback::TimedOut),
        Err(error) => return Err(error),
    };
    Ok(Tried { fallback, weights })
}

fn weight<'a>(weights: &'a BTreeMap<String, Weights>, name: &str) -> Result<&'a Weights, ModelError> {
    weights.get(name).ok_or_else(|| ModelError::Shape(format!("there is no tensor `{name}`")))
}

/// The commands of a token.
fn tokens(
    bundle: &Bundle,
    table: &Table,
    kernels: &mut Kernels,
    (weights, spin): (&BTreeMap<String, Weights>, Duration),
) -> Result<bool, ModelError> {
    let (text, down) = (&bundle.manifest.text, table.gemv("down")?);
    let (k, m, slices) = (down.record.k, down.record.m, text.down_slices.max(1));
    let device = kernels.npu().device().clone();
    let x = Buffer::new(&device, element(text), slices * k)?;
    let (mut outputs, mut commands) = (Vec::new(), Vec::new());
    for i in 0..kernels.in_flight() {
        let y = Buffer::new(&device, element(text), m)?;
        let s = i % slices;
        let slice = weight(weights, &format!("l0.g.down{s}"))?;
        commands.push(kernels.bind(down.kernel, &[x.input(s * k)?, slice.view()?, y.output()?])?);
        outputs.push(y);
    }
    compare(kernels, &[x], &outputs, &commands, (TOKENS, spin))
}

/// The commands of a prompt of some chunks, in lanes.
fn prompts(
    bundle: &Bundle,
    table: &Table,
    kernels: &mut Kernels,
    (weights, spin): (&BTreeMap<String, Weights>, Duration),
) -> Result<bool, ModelError> {
    let (text, o) = (&bundle.manifest.text, table.gemm("o")?);
    let device = kernels.npu().device().clone();
    let weights = weight(weights, PROMPT)?;
    let (mut inputs, mut outputs, mut commands) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..kernels.in_flight().min(LANES) {
        let a = Buffer::new(&device, element(text), o.a_elems(1))?;
        let c = Buffer::new(&device, element(text), o.c_elems(1))?;
        commands.push(kernels.bind(o.one_chunk()?, &[a.input(0)?, weights.view()?, c.output()?])?);
        inputs.push(a);
        outputs.push(c);
    }
    compare(kernels, &inputs, &outputs, &commands, (PROMPTS, spin))
}

/// Whether the commands leave the same in their outputs all together and one at a time.
fn compare(
    kernels: &mut Kernels,
    inputs: &[Buffer],
    outputs: &[Buffer],
    commands: &[CommandId],
    (rounds, spin): (usize, Duration),
) -> Result<bool, ModelError> {
    let pool = Pool::serial();
    let read = || -> Result<Vec<u32>, NpuError> {
        let mut bits = Vec::new();
        for output in outputs {
            let mut values = vec![0.0; output.len()];
            output.read_rows(&pool, values.len(), values.len(), &mut values)?;
            bits.extend(values.iter().map(|value| value.to_bits()));
        }
        Ok(bits)
    };
    let mut state = 0x9E37_79B9_u32;
    for _ in 0..rounds {
        for input in inputs {
            let values: Vec<f32> = (0..input.len()).map(|_| uniform(&mut state)).collect();
            input.write_rows(&pool, values.len(), values.len(), &values)?;
        }
        kernels.set_spin(spin);
        kernels.run(commands)?;
        let together = read()?;
        kernels.set_spin(Duration::ZERO);
        for &command in commands {
            kernels.run(&[command])?;
        }
        if read()? != together {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Between -1 and 1.
fn uniform(state: &mut u32) -> f32 {
    *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    (*state >> 8) as f32 / (1 << 23) as f32 - 1.0
}
