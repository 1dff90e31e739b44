//! Just enough of the safetensors format to read what transformers wrote.

use std::path::Path;

use serde_json::Value;

/// A file, whole in memory.
pub(crate) struct Safetensors {
    header: Value,
    data: Vec<u8>,
}

impl Safetensors {
    pub(crate) fn read(path: &Path) -> Safetensors {
        let mut data = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let length = u64::from_le_bytes(data[..8].try_into().unwrap()) as usize;
        let header = serde_json::from_slice(&data[8..8 + length]).unwrap();
        data.drain(..8 + length);
        Safetensors { header, data }
    }

    /// Shape and values of an F32 tensor.
    pub(crate) fn f32s(&self, name: &str) -> (Vec<usize>, Vec<f32>) {
        let entry = &self.header[name];
        assert_eq!(entry["dtype"], "F32", "{name}");
        let numbers = |key: &str| -> Vec<usize> {
            entry[key].as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect()
        };
        let at = numbers("data_offsets");
        let values = self.data[at[0]..at[1]].chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()));
        (numbers("shape"), values.collect())
    }
}
