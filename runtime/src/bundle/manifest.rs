//! `manifest.txt`: its grammar, and the typed form.

use std::collections::BTreeMap;

use super::params::{TextParams, VisionParams};
use super::records::{GemmRecord, GemvRecord, RefRecord, TokCase, XclbinRecord};

/// A manifest, checked and typed.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    /// The text model.
    pub text: TextParams,
    /// The vision tower, if the bundle has one.
    pub vision: Option<VisionParams>,
    /// Containers by key.
    pub xclbins: BTreeMap<String, XclbinRecord>,
    /// Matrix products by key.
    pub gemms: BTreeMap<String, GemmRecord>,
    /// Matrix by vector products by key.
    pub gemvs: BTreeMap<String, GemvRecord>,
    /// Tokenizer cases.
    pub tokcases: Vec<TokCase>,
    /// Reference runs.
    pub refs: Vec<RefRecord>,
}
