//! What a prompt leaves behind besides its state.

/// What is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Keep {
    /// Only the output for the last row, as always.
    #[default]
    Nothing,
    /// The output for all rows: their logits are wanted.
    Outputs,
    /// That, and what went into the mixers: the rows may turn out too many.
    Inputs,
}

/// What has been left.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// Output of the last layer, `[rows, D]`.
    pub(super) outputs: Vec<f32>,
    /// Of each layer.
    pub(super) inputs: Vec<Inputs>,
}

/// What went into a layer's mixer.
#[derive(Debug, Default)]
pub(super) struct Inputs {
    /// `[rows, D]`.
    pub(super) normed: Vec<f32>,
    /// `[rows, width of the input projection]`.
    pub(super) projected: Vec<f32>,
}

impl Kept {
    /// Makes ready for `rows` rows; memory stays.
    pub(super) fn clear(&mut self, keep: Keep, rows: usize, d: usize, layers: usize) {
        self.outputs.resize(if keep == Keep::Nothing { 0 } else { rows * d }, 0.0);
        if keep == Keep::Inputs {
            self.inputs.resize_with(layers, Inputs::default);
        }
        for inputs in &mut self.inputs {
            inputs.normed.clear();
            inputs.projected.clear();
        }
    }

    /// The output of rows, which begin at value `at`.
    pub(super) fn output(&mut self, keep: Keep, at: usize, hidden: &[f32]) {
        if keep != Keep::Nothing {
            self.outputs[at..][..hidden.len()].copy_from_slice(hidden);
        }
    }

    /// What goes into a layer's mixer; units pass it in their order.
    pub(super) fn input(&mut self, keep: Keep, layer: usize, normed: &[f32], projected: &[f32]) {
        if keep == Keep::Inputs {
            self.inputs[layer].normed.extend_from_slice(normed);
            self.inputs[layer].projected.extend_from_slice(projected);
        }
    }
}
