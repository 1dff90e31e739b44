//! Where time went: by what the host did, and by the projection that it waited for.

use std::time::Duration;

/// A rough division of the host's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Decoding embeddings, norms, residual adds; of a prompt or a picture with the rows around them.
    Norm,
    /// DeltaNet, attention, activations.
    Mixer,
    /// Conversions into and out of buffers, with their cache lines.
    Transfer,
    /// Submitting commands and waiting for them, and what the host multiplies in their place.
    Npu,
}

impl Part {
    /// All of them, in the order of a report.
    pub const ALL: [Part; 4] = [Part::Norm, Part::Mixer, Part::Transfer, Part::Npu];

    /// A word for a report.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Part::Norm => "norms",
            Part::Mixer => "mixers",
            Part::Transfer => "transfers",
            Part::Npu => "npu",
        }
    }
}

/// What the host does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Embeddings, and the tables of rotary positions.
    Embedding,
    /// Norms; of a prompt or a picture with residual adds and with the rows out of and into buffers.
    Norm,
    /// The mixer of DeltaNet layers; of a prompt with the rows out of and into buffers, as the other mixers.
    DeltaNet,
    /// The mixer of attention layers.
    Attention,
    /// Attention of the vision tower.
    VisionAttention,
    /// SwiGLU and GELU, the latter where the rows lie.
    Activation,
    /// Rows into buffers of the NPU.
    Write,
    /// Rows out of them, residual adds included.
    Read,
    /// Bringing a layer's state into the cache while the NPU works.
    Warm,
    /// Multiplying parts that the NPU is spared.
    Product,
    /// Handing commands over.
    Submit,
    /// Waiting for them with nothing else to do.
    Wait,
}

impl Stage {
    /// All of them, in the order of a report.
    pub const ALL: [Stage; 12] = [
        Stage::Embedding,
        Stage::Norm,
        Stage::DeltaNet,
        Stage::Attention,
        Stage::VisionAttention,
        Stage::Activation,
        Stage::Write,
        Stage::Read,
        Stage::Warm,
        Stage::Product,
        Stage::Submit,
        Stage::Wait,
    ];

    /// A word for a report.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Stage::Embedding => "embedding",
            Stage::Norm => "norm",
            Stage::DeltaNet => "DeltaNet",
            Stage::Attention => "attention",
            Stage::VisionAttention => "vision attention",
            Stage::Activation => "activation",
            Stage::Write => "write",
            Stage::Read => "read",
            Stage::Warm => "warm up",
            Stage::Product => "host products",
            Stage::Submit => "submit",
            Stage::Wait => "wait",
        }
    }

    /// What it counts as.
    #[must_use]
    pub fn part(self) -> Part {
        match self {
            Stage::Embedding | Stage::Norm => Part::Norm,
            Stage::DeltaNet | Stage::Attention | Stage::VisionAttention | Stage::Activation | Stage::Warm => {
                Part::Mixer
            }
            Stage::Write | Stage::Read => Part::Transfer,
            Stage::Product | Stage::Submit | Stage::Wait => Part::Npu,
        }
    }
}

/// A projection, the same in every layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Projection {
    /// `in` of DeltaNet layers.
    Linear,
    /// `in` of attention layers.
    Attention,
    /// `o`.
    Output,
    /// `gu`.
    GateUp,
    /// The slices of `down`.
    Down,
    /// The parts of the head.
    Head,
    /// The patches' embedding.
    Patch,
    /// `qkv` of the tower.
    Qkv,
    /// `proj` of the tower.
    Proj,
    /// `fc1` of the tower.
    Fc1,
    /// The slices of `fc2` of the tower.
    Fc2,
    /// Both linears of the merger.
    Merger,
}

impl Projection {
    /// All of them, in the order of a report.
    pub const ALL: [Projection; 12] = [
        Projection::Linear,
        Projection::Attention,
        Projection::Output,
        Projection::GateUp,
        Projection::Down,
        Projection::Head,
        Projection::Patch,
        Projection::Qkv,
        Projection::Proj,
        Projection::Fc1,
        Projection::Fc2,
        Projection::Merger,
    ];

    /// A word for a report.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Projection::Linear => "in (DeltaNet)",
            Projection::Attention => "in (attention)",
            Projection::Output => "o",
            Projection::GateUp => "gu",
            Projection::Down => "down",
            Projection::Head => "head",
            Projection::Patch => "v patch",
            Projection::Qkv => "v qkv",
            Projection::Proj => "v proj",
            Projection::Fc1 => "v fc1",
            Projection::Fc2 => "v fc2",
            Projection::Merger => "v merger",
        }
    }
}

/// What was asked of a projection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Commands.
    pub commands: u64,
    /// Parts that the host has multiplied in the place of a command.
    pub taken: u64,
    /// Time that the host waited for them with nothing else to do.
    pub waited: Duration,
}

/// Where time went since a model was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    stages: [(u64, Duration); Stage::ALL.len()],
    projections: [Asked; Projection::ALL.len()],
    /// Time in which at least one command was in flight.
    in_flight: Duration,
}

impl Profile {
    /// Times that a stage was entered, and how long it took in all.
    #[must_use]
    pub fn stage(&self, stage: Stage) -> (u64, Duration) {
        self.stages[stage as usize]
    }

    /// The stages of a part together.
    #[must_use]
    pub fn part(&self, part: Part) -> (u64, Duration) {
        let stages = Stage::ALL.iter().filter(|stage| stage.part() == part).map(|&stage| self.stage(stage));
        stages.fold((0, Duration::ZERO), |(count, time), (c, t)| (count + c, time + t))
    }

    /// What was asked of a projection.
    #[must_use]
    pub fn projection(&self, projection: Projection) -> Asked {
        self.projections[projection as usize]
    }

    /// Time in which at least one command was in flight, as the host saw it.
    #[must_use]
    pub fn in_flight(&self) -> Duration {
        self.in_flight
    }

    /// Time in which the host worked while commands were in flight.
    #[must_use]
    pub fn overlap(&self) -> Duration {
        self.in_flight.saturating_sub(self.stage(Stage::Wait).1)
    }

    /// What was spent since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Profile) -> Profile {
        let mut out = *self;
        for (now, then) in out.stages.iter_mut().zip(&earlier.stages) {
            *now = (now.0.saturating_sub(then.0), now.1.saturating_sub(then.1));
        }
        for (now, then) in out.projections.iter_mut().zip(&earlier.projections) {
            now.commands = now.commands.saturating_sub(then.commands);
            now.taken = now.taken.saturating_sub(then.taken);
            now.waited = now.waited.saturating_sub(then.waited);
        }
        out.in_flight = out.in_flight.saturating_sub(earlier.in_flight);
        out
    }

    pub(super) fn add(&mut self, stage: Stage, time: Duration) {
        let (count, sum) = &mut self.stages[stage as usize];
        *count += 1;
        *sum += time;
    }

    pub(super) fn asked(&mut self, projection: Projection) -> &mut Asked {
        &mut self.projections[projection as usize]
    }

    pub(super) fn flown(&mut self, time: Duration) {
        self.in_flight += time;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_in_the_order_of_their_indices() {
        assert!(Stage::ALL.iter().enumerate().all(|(i, &stage)| stage as usize == i));
        assert!(Projection::ALL.iter().enumerate().all(|(i, &projection)| projection as usize == i));
    }

    #[test]
    fn a_part_is_the_sum_of_its_stages_and_a_difference_forgets_the_past() {
        let ms = Duration::from_millis;
        let mut profile = Profile::default();
        profile.add(Stage::Write, ms(1));
        let before = profile;
        profile.add(Stage::Write, ms(2));
        profile.add(Stage::Read, ms(3));
        profile.add(Stage::Wait, ms(4));
        profile.flown(ms(9));
        profile.asked(Projection::Down).commands += 3;
        let spent = profile.since(&before);
        assert_eq!(profile.part(Part::Transfer), (3, ms(6)));
        assert_eq!(spent.part(Part::Transfer), (2, ms(5)));
        assert_eq!((spent.overlap(), spent.projection(Projection::Down).commands), (ms(5), 3));
    }
}
