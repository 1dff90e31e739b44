//! Checkpoints in Hugging Face's form with random weights: of the shape of every published Qwen3.5, and of small ones
//! with the same peculiarities.

mod config;
mod tokenizer;
mod weights;

use std::path::Path;

use serde_json::{Value, json};

/// The numbers in which sizes differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// What it is called here.
    pub name: &'static str,
    /// Width of the model.
    pub hidden: usize,
    /// Width of its MLP.
    pub intermediate: usize,
    /// Layers.
    pub layers: usize,
    /// The last of so many layers is one of attention, the others are DeltaNet.
    pub interval: usize,
    /// Attention heads.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Width of an attention head; a quarter of it is rotated.
    pub head_dim: usize,
    /// Key heads of a DeltaNet layer.
    pub key_heads: usize,
    /// Its value heads.
    pub value_heads: usize,
    /// Width of either.
    pub linear_dim: usize,
    /// Rows of the embedding.
    pub vocab: usize,
    /// Tokens before the added ones.
    pub words: usize,
    /// Whether the head is the embedding.
    pub tied: bool,
    /// Rotary sections of time, row and column.
    pub sections: [usize; 3],
    /// The vision tower.
    pub tower: Tower,
}

/// A vision tower.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tower {
    /// Width.
    pub hidden: usize,
    /// Width of its MLP.
    pub intermediate: usize,
    /// Blocks.
    pub depth: usize,
    /// Attention heads.
    pub heads: usize,
    /// Entries along the edge of the position table.
    pub side: usize,
}

/// How a checkpoint is written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    /// As older copies do: rotary parameters beside the others and in `rope_scaling`, no list of layer types.
    pub old: bool,
    /// Files that the weights are spread over; more than one get an index.
    pub shards: usize,
}

impl Form {
    /// As transformers writes a small model today.
    pub const USUAL: Self = Self { old: false, shards: 1 };
}

const REAL: Size = Size {
    name: "2b",
    hidden: 2048,
    intermediate: 6144,
    layers: 24,
    interval: 4,
    heads: 8,
    kv_heads: 2,
    head_dim: 256,
    key_heads: 16,
    value_heads: 16,
    linear_dim: 128,
    vocab: 248_320,
    words: 248_044,
    tied: true,
    sections: [11, 11, 10],
    tower: Tower { hidden: 1024, intermediate: 4096, depth: 24, heads: 16, side: 48 },
};

/// The smallest model that the kernels' tiles allow.
const SMALL: Size = Size {
    name: "small",
    hidden: 512,
    intermediate: 512,
    layers: 4,
    interval: 4,
    heads: 8,
    kv_heads: 2,
    head_dim: 64,
    key_heads: 8,
    value_heads: 8,
    linear_dim: 64,
    vocab: 320,
    words: 260,
    tied: true,
    sections: [3, 3, 2],
    tower: Tower { hidden: 512, intermediate: 2048, depth: 1, heads: 8, side: 8 },
};

/// The published sizes, from their configurations, and a tiny one in the shape of the 2B.
pub const SIZES: [Size; 5] = [
    REAL,
    Size {
        name: "0.8b",
        hidden: 1024,
        intermediate: 3584,
        tower: Tower { hidden: 768, intermediate: 3072, depth: 12, heads: 12, side: 48 },
        ..REAL
    },
    Size { name: "4b", hidden: 2560, intermediate: 9216, layers: 32, heads: 16, kv_heads: 4, value_heads: 32, ..REAL },
    Size {
        name: "9b",
        hidden: 4096,
        intermediate: 12_288,
        layers: 32,
        heads: 16,
        kv_heads: 4,
        value_heads: 32,
        tied: false,
        tower: Tower { hidden: 1152, intermediate: 4304, depth: 27, heads: 16, side: 48 },
        ..REAL
    },
    Size {
        name: "tiny",
        intermediate: 1024,
        vocab: 2048,
        words: 2000,
        tower: Tower { hidden: 512, intermediate: 2048, depth: 2, heads: 8, side: 24 },
        ..SMALL
    },
];

/// Two layers that talk gibberish: for everything that is not about shapes.
pub const TINY: Size = Size { name: "two layers", layers: 2, interval: 2, ..SMALL };

/// What is odd about the published sizes, at the smallest widths: `o` wider than the model and a tower of 768 (0.8B);
/// more value heads than key heads, an MLP that is no multiple of the width (4B); an untied head, a vocabulary that
/// the head's parts do not divide, heads of 72 in the tower, an MLP of the tower that no tile divides (9B).
pub const ODD: [Size; 3] = [
    Size {
        name: "like 0.8b",
        head_dim: 128,
        linear_dim: 128,
        sections: [6, 5, 5],
        tower: Tower { hidden: 768, intermediate: 3072, depth: 1, heads: 12, side: 8 },
        ..SMALL
    },
    Size {
        name: "like 4b",
        intermediate: 800,
        kv_heads: 4,
        head_dim: 128,
        key_heads: 4,
        linear_dim: 128,
        sections: [6, 5, 5],
        tower: Tower { hidden: 256, intermediate: 1024, depth: 1, heads: 4, side: 8 },
        ..SMALL
    },
    Size {
        name: "like 9b",
        intermediate: 1536,
        kv_heads: 4,
        key_heads: 4,
        vocab: 310,
        tied: false,
        tower: Tower { hidden: 144, intermediate: 538, depth: 2, heads: 2, side: 8 },
        ..SMALL
    },
];

impl Size {
    /// The published size of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        SIZES.into_iter().find(|size| size.name == name)
    }

    /// `config.json`.
    #[must_use]
    pub fn config(&self, form: Form) -> Value {
        config::config(self, form)
    }

    /// `generation_config.json`.
    #[must_use]
    pub fn generation(&self) -> Value {
        json!({"eos_token_id": [self.words + 2, self.words], "do_sample": false})
    }

    /// `tokenizer.json`.
    #[must_use]
    pub fn tokenizer(&self) -> Value {
        tokenizer::tokenizer(self.words)
    }

    /// Writes all files of a checkpoint into `folder`.
    ///
    /// # Errors
    /// What the file system refused.
    pub fn write(&self, folder: &Path, form: Form) -> std::io::Result<()> {
        std::fs::create_dir_all(folder)?;
        let write = |name: &str, value: &Value| std::fs::write(folder.join(name), format!("{value:#}\n"));
        write("config.json", &self.config(form))?;
        write("generation_config.json", &self.generation())?;
        write("preprocessor_config.json", &config::preprocessor())?;
        write("tokenizer.json", &self.tokenizer())?;
        weights::write(folder, self, form.shards)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::export::{ExportOptions, manifest_for};

    /// Widths that follow from the published configurations, worked out apart from this code: n_lin, n_att, the inputs
    /// of `o`, `down` slices and their length, K and N of the patch projection, K and N of the tower's fc2 and fc1.
    #[test]
    fn published_sizes_have_the_published_widths() {
        let widths = [
            ("2b", [8192, 5120, 2048, 3, 2048, 1024, 1024, 1024, 4096]),
            ("0.8b", [8192, 5120, 2048, 1, 3584, 1024, 768, 1536, 3072]),
            ("4b", [12_288, 10_240, 4096, 3, 3072, 1024, 1024, 1024, 4096]),
            ("9b", [12_288, 10_240, 4096, 3, 4096, 1024, 1152, 1536, 4352]),
        ];
        for (name, expected) in widths {
            let size = Size::named(name).unwrap();
            let options = ExportOptions::new("".into(), "".into());
            for old in [false, true] {
                let config = size.config(Form { old, shards: 1 });
                let manifest = manifest_for(&config, &size.generation(), &Value::Null, &options).unwrap();
                let (text, gemm) = (&manifest.text, |key: &str| &manifest.gemms[key]);
                let found = [
                    gemm("lin").n,
                    gemm("att").n,
                    text.o_k,
                    text.down_slices,
                    text.down_k,
                    gemm("v_patch").k,
                    gemm("v_patch").n,
                    gemm("v_fc2").k,
                    gemm("v_fc1").n,
                ];
                assert_eq!(found, expected, "{name}");
                assert_eq!((text.head_parts, text.head_rows), (5, 49_664));
                assert_eq!(text.untied, name == "9b");
                assert_eq!((text.rope_dim, text.rope_theta, text.mrope_section), (64, 1e7, [11, 11, 10]));
                let attention = text.layers.iter().filter(|kind| kind.key() == "att").count();
                assert_eq!((text.layers.len(), attention), (size.layers, size.layers / 4));
                assert_eq!(text.stop, [248_046, 248_044]);
            }
        }
    }
}
