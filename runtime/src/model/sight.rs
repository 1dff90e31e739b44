//! The vision tower at need: nothing of it is read and none of its buffers made before there is a picture.

use super::error::ModelError;
use super::kernels::{Table, Uploader};
use super::options::{KvFormat, Progress};
use super::vision::{Projections, Vision};
use crate::bundle::{Bundle, VisionParams};
use crate::npu::Kernels;

/// A tower that is there when it is asked for.
#[derive(Debug)]
pub(super) struct Sight {
    pub(super) params: VisionParams,
    projections: Projections,
    vision: Option<Vision>,
}

impl Sight {
    /// Notes what is needed of the kernels, so that a bundle without them is refused when it is loaded.
    pub(super) fn new(params: VisionParams, table: &Table) -> Result<Sight, ModelError> {
        Ok(Sight { params, projections: Projections::of(table)?, vision: None })
    }

    /// The tower on the device. `progress` hears of it if it is loaded now.
    pub(super) fn loaded(
        &mut self,
        bundle: &Bundle,
        kernels: &Kernels,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<&mut Vision, ModelError> {
        let vision = match self.vision.take() {
            Some(vision) => vision,
            None => {
                // The tower keeps no keys and values.
                let mut up = Uploader::new(bundle, kernels, KvFormat::F32, 0, progress);
                Vision::load(&self.params, self.projections.clone(), &mut up)?
            }
        };
        Ok(self.vision.insert(vision))
    }
}
