//! The typed parameters of a manifest: what the text model and the vision tower look like.

use host_ops::pack::Format;

/// How the weights of a bundle are stored and what its buffers hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WeightFormat {
    /// Blocks of eight values in nine bytes; activations are bf16.
    Bfp16,
    /// Blocks of sixteen values in thirteen bytes; activations are bf16. For the text model only.
    Bfp6s,
    /// Plain f32 in the order of the bfp16 streams; activations are f32. For reference kernels only.
    F32,
}

impl WeightFormat {
    /// The manifest's spelling.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bfp16 => "bfp16",
            Self::Bfp6s => "bfp6s",
            Self::F32 => "f32",
        }
    }

    /// Reads the manifest's spelling.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "bfp16" => Some(Self::Bfp16),
            "bfp6s" => Some(Self::Bfp6s),
            "f32" => Some(Self::F32),
            _ => None,
        }
    }

    /// What the packer calls it.
    #[must_use]
    pub fn packing(self) -> Format {
        match self {
            Self::Bfp16 => Format::Bfp16,
            Self::Bfp6s => Format::Bfp6s,
            Self::F32 => Format::F32,
        }
    }

    /// Bytes of one element of an activation buffer (A, C, x, y).
    #[must_use]
    pub fn element_bytes(self) -> usize {
        match self {
            Self::Bfp16 | Self::Bfp6s => 2,
            Self::F32 => 4,
        }
    }

    /// Bytes of `count` weights, or `None` if that overflows or is not a whole number of blocks.
    #[must_use]
    pub fn weight_bytes(self, count: usize) -> Option<usize> {
        match self {
            Self::Bfp16 => count.is_multiple_of(8).then(|| (count / 8).checked_mul(9)).flatten(),
            Self::Bfp6s => count.is_multiple_of(16).then(|| (count / 16).checked_mul(13)).flatten(),
            Self::F32 => count.checked_mul(4),
        }
    }

    /// Bytes of a packed `[K, N]` matrix, with or without a bias chunk before each 64-column block.
    ///
    /// A bias chunk is as long as one 128 x 64 slice of weights, whatever the format.
    #[must_use]
    pub fn stream_bytes(self, k: usize, n: usize, bias: bool) -> Option<usize> {
        let weights = self.weight_bytes(k.checked_mul(n)?)?;
        let chunk = if bias { self.weight_bytes(128 * 64)? } else { 0 };
        weights.checked_add(n.div_ceil(64).checked_mul(chunk)?)
    }
}

/// What mixes the tokens of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LayerKind {
    /// Gated DeltaNet, `lin` in a manifest.
    Linear,
    /// Gated softmax attention, `att` in a manifest.
    Attention,
}

impl LayerKind {
    /// The key of the layer's input projection among the `gemm` and `gemv` records: `lin` or `att`.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Self::Linear => "lin",
            Self::Attention => "att",
        }
    }
}

/// The text model's parameters. The comment of each field gives its name in the manifest.
#[derive(Debug, Clone, PartialEq)]
pub struct TextParams {
    /// `layer_types`: one entry a layer.
    pub layers: Vec<LayerKind>,
    /// `D`: the width of the residual stream.
    pub hidden: usize,
    /// `I`: the width of the MLP.
    pub intermediate: usize,
    /// `vocab`: rows of the head that mean a token.
    pub vocab: usize,
    /// `eps` of every RMS norm.
    pub eps: f32,
    /// `heads`: query heads of an attention layer.
    pub heads: usize,
    /// `kv_heads`: key and value heads of an attention layer; divides `heads`.
    pub kv_heads: usize,
    /// `hd`: the width of an attention head.
    pub head_dim: usize,
    /// `rope_dim`: rotated values of a head; even, at most `head_dim`.
    pub rope_dim: usize,
    /// `rope_theta`.
    pub rope_theta: f32,
    /// `mrope_section`: pairs turned by time, row and column. All zero when absent: every pair follows time.
    pub mrope_section: [usize; 3],
    /// `lin_heads`: query and key heads of a DeltaNet layer.
    pub lin_key_heads: usize,
    /// `lin_vheads`, or `lin_heads` when absent: value heads of a DeltaNet layer, a multiple of the key heads.
    pub lin_value_heads: usize,
    /// `lin_hk`: the width of a key head.
    pub lin_key_dim: usize,
    /// `lin_hv`: the width of a value head.
    pub lin_value_dim: usize,
    /// `conv_k`: taps of the causal convolution.
    pub conv_kernel: usize,
    /// `chunk`: rows of one GEMM chunk (256).
    pub chunk: usize,
    /// `max_prompt`: rows the text streams can take in one dispatch; a multiple of `chunk`.
    pub max_prompt: usize,
    /// `n_down`: K slices of the `down` projection.
    pub down_slices: usize,
    /// `down_k`, or `D` when absent: the K of one `down` slice. `down_slices * down_k >= I`.
    pub down_k: usize,
    /// `o_k`, or `D` when absent: the K of the `o` projection, `heads * hd` and `lin_vheads * lin_hv` wide.
    pub o_k: usize,
    /// `head_rows`: rows of one part of the head.
    pub head_rows: usize,
    /// `n_head`: parts of the head. `head_rows * head_parts >= vocab`; rows past `vocab` are zero.
    pub head_parts: usize,
    /// `embed 1`: the embedding is not the head; it has tensors `embed{j}` laid out as `head{j}`.
    pub untied: bool,
    /// `stop`: tokens that end an answer.
    pub stop: Vec<u32>,
    /// `gemv_format`: the format of every packed text weight.
    pub format: WeightFormat,
}

impl TextParams {
    /// Width of the queries, or of the keys, of a DeltaNet layer.
    #[must_use]
    pub fn key_width(&self) -> usize {
        self.lin_key_heads * self.lin_key_dim
    }

    /// Width of the values of a DeltaNet layer.
    #[must_use]
    pub fn value_width(&self) -> usize {
        self.lin_value_heads * self.lin_value_dim
    }

    /// Channels of a DeltaNet layer's convolution: q, k and v.
    #[must_use]
    pub fn conv_channels(&self) -> usize {
        2 * self.key_width() + self.value_width()
    }

    /// Output columns of a layer's input projection: q, k, v, z of a DeltaNet layer; q and gate, k, v of an attention layer.
    #[must_use]
    pub fn in_width(&self, kind: LayerKind) -> usize {
        match kind {
            LayerKind::Linear => self.conv_channels() + self.value_width(),
            LayerKind::Attention => (2 * self.heads + 2 * self.kv_heads) * self.head_dim,
        }
    }
}

/// The vision tower's parameters. The comment of each field gives its name in the manifest.
#[derive(Debug, Clone, PartialEq)]
pub struct VisionParams {
    /// `v.D`: the width of the tower.
    pub hidden: usize,
    /// `v.I`: the width of its MLP.
    pub intermediate: usize,
    /// `v.depth`: blocks.
    pub depth: usize,
    /// `v.heads`: attention heads; divides `v.D`.
    pub heads: usize,
    /// `v.patch`: pixels along a patch's edge (16).
    pub patch: usize,
    /// `v.merge`: patches along the edge of one image token (2).
    pub merge: usize,
    /// `v.out`: width of the tower's rows, the text model's `D`.
    pub out: usize,
    /// `v.pos_side`: entries along the edge of the learned position table.
    pub pos_side: usize,
    /// `v.rope_theta`.
    pub rope_theta: f32,
    /// `v.image_token`: the placeholder that the tower's rows replace.
    pub image_token: u32,
    /// `v.vision_start`: the token before an image.
    pub vision_start: u32,
    /// `v.vision_end`: the token after an image.
    pub vision_end: u32,
    /// `v.min_pixels` an image is enlarged to.
    pub min_pixels: usize,
    /// `v.max_pixels` an image is reduced to.
    pub max_pixels: usize,
    /// `v.max_patches`: rows the vision streams can take.
    pub max_patches: usize,
    /// `v.fc2_slices`, or 4 when absent: K slices of a block's second linear, `vis.b{i}.fc2.{s}`.
    pub fc2_slices: usize,
    /// `v.m_slices`, or 4 when absent: K slices of both merger linears, `vis.m1.{s}` and `vis.m2.{s}`.
    pub merger_slices: usize,
    /// `v.weights`: format of the tower's packed weights (`w8` and `bfp16x2` are kept in bfp16 blocks).
    pub format: WeightFormat,
}

impl VisionParams {
    /// Values of one patch: channels x rows x columns.
    #[must_use]
    pub fn patch_values(&self) -> usize {
        3 * self.patch * self.patch
    }

    /// Patches that become one row of the tower's output.
    #[must_use]
    pub fn merged(&self) -> usize {
        self.merge * self.merge
    }
}
