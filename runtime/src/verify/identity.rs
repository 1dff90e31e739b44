//! Which model a bundle holds, in which form, and whether one like it is known to be published.

use std::fmt;

use crate::bundle::{Bundle, Manifest, WeightFormat};
use crate::reference::is_reference;

/// What a bundle's kernels run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelKind {
    /// The software NPU alone.
    Reference,
    /// Compiled for the cores of a real NPU.
    Compiled,
    /// Some of either: no device runs them all.
    Mixed,
}

impl KernelKind {
    /// One word for programs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Reference => "reference",
            Self::Compiled => "compiled",
            Self::Mixed => "mixed",
        }
    }
}

/// What a bundle is.
#[derive(Debug, Clone, PartialEq)]
pub struct Identity {
    /// `Qwen3.5-2B` and so on, if the widths are those of a published size.
    pub model: Option<&'static str>,
    /// Layers of the text model; fewer than the published model has in a cut one.
    pub layers: usize,
    /// Layers of the published model, 0 for an unknown one.
    pub published_layers: usize,
    /// Format of the text weights.
    pub text: WeightFormat,
    /// Format of the tower's weights, if there is one: `w8`, `bfp16`, some of either, `bfp16x2` or `f32`.
    pub vision: Option<&'static str>,
    /// The kernels.
    pub kernels: KernelKind,
}

/// Name, D, I, linear value heads and layers of the published sizes.
const SIZES: [(&str, usize, usize, usize, usize); 4] = [
    ("Qwen3.5-0.8B", 1024, 3584, 16, 24),
    ("Qwen3.5-2B", 2048, 6144, 16, 24),
    ("Qwen3.5-4B", 2560, 9216, 32, 32),
    ("Qwen3.5-9B", 4096, 12_288, 32, 32),
];

impl Identity {
    /// Of an open bundle.
    #[must_use]
    pub fn of(bundle: &Bundle) -> Self {
        let kernels = bundle.manifest.xclbins.keys().filter_map(|key| bundle.xclbin(key).ok());
        let (mut reference, mut compiled) = (false, false);
        for xclbin in kernels {
            if is_reference(&xclbin.pdi) { reference = true } else { compiled = true }
        }
        let kernels = match (reference, compiled) {
            (true, true) => KernelKind::Mixed,
            (true, false) => KernelKind::Reference,
            _ => KernelKind::Compiled,
        };
        let factors = bundle.tensor_names().filter(|name| name.starts_with("vis.") && name.ends_with(".f")).count();
        Self::from(&bundle.manifest, factors, kernels)
    }

    /// `factors`: weights of the tower that have a factor a column.
    fn from(manifest: &Manifest, factors: usize, kernels: KernelKind) -> Self {
        let text = &manifest.text;
        let widths = (text.hidden, text.intermediate, text.lin_value_heads);
        let size = SIZES.iter().find(|(_, d, i, heads, _)| (*d, *i, *heads) == widths);
        let two_parts = manifest.gemms.values().any(|gemm| gemm.key.starts_with("v_") && gemm.in_two_parts());
        let vision = manifest.vision.as_ref().map(|vision| match factors {
            _ if vision.format == WeightFormat::F32 => "f32",
            _ if two_parts => "bfp16x2",
            0 => "bfp16",
            // The patch projection, four linears a block, two of the merger.
            _ if factors >= 4 * vision.depth + 3 => "w8",
            _ => "w8 and bfp16",
        });
        Self {
            model: size.map(|size| size.0),
            layers: text.layers.len(),
            published_layers: size.map_or(0, |size| size.4),
            text: text.format,
            vision,
            kernels,
        }
    }

    /// The published bundle that has this form, if there is one. That a bundle *is* it only its publisher's digests can
    /// tell, which no format of ours holds; what a download has noted of them is in `Verification::origin`.
    #[must_use]
    pub fn published(&self) -> Option<&'static str> {
        let whole = self.model == Some("Qwen3.5-2B") && self.layers == self.published_layers;
        match (self.text, self.vision) {
            _ if !whole || self.kernels != KernelKind::Compiled => None,
            (WeightFormat::Bfp16, Some("w8")) => {
                Some("the published Qwen3.5-2B bundle in bfp16, and of the earlier one that is called bundle-w8")
            }
            (WeightFormat::Bfp6s, Some("w8")) => {
                Some("the published Qwen3.5-2B bundle in bfp6s, the branch of that name")
            }
            _ => None,
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.model {
            Some(model) if self.layers == self.published_layers => write!(f, "{model}")?,
            Some(model) => write!(f, "{model} cut to {} of {} layers", self.layers, self.published_layers)?,
            None => write!(f, "a model of no published size, {} layers", self.layers)?,
        }
        write!(f, ", text in {}, ", self.text.name())?;
        match self.vision {
            Some(vision) => write!(f, "vision in {vision}, ")?,
            None => write!(f, "no vision, ")?,
        }
        f.write_str(match self.kernels {
            KernelKind::Reference => "kernels for the software NPU",
            KernelKind::Compiled => "kernels compiled for an NPU",
            KernelKind::Mixed => "kernels of both sorts, which no device runs",
        })?;
        match self.published() {
            Some(published) => write!(f, "; of the form of {published}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        Identity {
            model: Some("Qwen3.5-2B"),
            layers: 24,
            published_layers: 24,
            text: WeightFormat::Bfp6s,
            vision: Some("w8"),
            kernels: KernelKind::Compiled,
        }
    }

    #[test]
    fn only_whole_compiled_bundles_are_like_published_ones() {
        assert_eq!(
            identity().to_string(),
            "Qwen3.5-2B, text in bfp6s, vision in w8, kernels compiled for an NPU; of the form of the published \
             Qwen3.5-2B bundle in bfp6s, the branch of that name"
        );
        let nine = Identity { text: WeightFormat::Bfp16, ..identity() };
        assert!(nine.published().is_some_and(|published| published.contains("bundle-w8")));
        for other in [
            Identity { kernels: KernelKind::Reference, ..identity() },
            Identity { kernels: KernelKind::Mixed, ..identity() },
            Identity { layers: 4, ..identity() },
            Identity { vision: None, ..identity() },
            Identity { vision: Some("bfp16x2"), ..identity() },
            Identity { text: WeightFormat::F32, ..identity() },
            Identity { model: None, ..identity() },
            Identity { model: Some("Qwen3.5-9B"), ..identity() },
        ] {
            assert_eq!(other.published(), None, "{other}");
        }
        let cut = Identity { layers: 4, ..identity() };
        assert!(cut.to_string().starts_with("Qwen3.5-2B cut to 4 of 24 layers, "));
    }
}
