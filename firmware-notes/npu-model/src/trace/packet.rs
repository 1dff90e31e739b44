//! A command packet in a trace.

use amdxdna_ioctl::packet::{Header, IronKernel, MAX_COUNT, Packet};
use serde_json::{Value, json};

use super::hex;
use super::known::Known;

/// Describes the packet in a command buffer.
pub(super) fn describe(known: &mut Known, handle: u32) -> Value {
    let Some(words) = known.words(handle, 1 + MAX_COUNT) else { return Value::Null };
    let Some(&first) = words.first() else { return Value::Null };
    let header = Header(first);
    let used = &words[..words.len().min(1 + header.count())];
    let mut out = json!({
        "header": hex(u64::from(first)),
        "words": used.len(),
    });
    match Packet::read(&words) {
        Ok(Packet::StartCu(start)) => {
            out["opcode"] = json!("START_CU");
            out["cu"] = json!(start.cu);
            match IronKernel::read(&start) {
                Some(kernel) => {
                    out["kernel"] = json!({
                        "instructions": known.place(kernel.instructions),
                        "instruction_bytes": kernel.instruction_bytes,
                        "buffers": kernel.buffers.iter().map(|&addr| known.place(addr)).collect::<Vec<_>>(),
                        "stream": known.stream(kernel.instructions, kernel.instruction_bytes),
                    });
                }
                None => out["args"] = json!(start.args),
            }
        }
        Ok(Packet::StartNpu(start)) => {
            out["opcode"] = json!("START_NPU");
            out["cu"] = json!(start.cu);
            out["instructions"] = known.place(start.instructions);
            out["instruction_bytes"] = json!(start.instruction_bytes);
            out["properties"] = json!(start.properties);
            out["args"] = json!(start.args);
        }
        Ok(Packet::StartNpuPreempt(start)) => {
            out["opcode"] = json!(if start.elf { "START_NPU_PREEMPT_ELF" } else { "START_NPU_PREEMPT" });
            out["cu"] = json!(start.cu);
            out["instructions"] = known.place(start.instructions);
            out["save"] = known.place(start.save);
            out["restore"] = known.place(start.restore);
            out["args"] = json!(start.args);
        }
        Ok(Packet::CmdChain(chain)) => {
            out["opcode"] = json!("CMD_CHAIN");
            let commands: Vec<Value> = chain.commands.iter().map(|&handle| describe_entry(known, handle)).collect();
            out["commands"] = json!(commands);
        }
        Err(error) => {
            out["error"] = json!(error.to_string());
            out["raw"] = json!(used);
        }
    }
    out
}

/// A chain's entry: no chain itself, whatever its words say.
fn describe_entry(known: &mut Known, handle: u32) -> Value {
    let chain = known.words(handle, 1).is_none_or(|words| {
        words.first().is_none_or(|&word| Header(word).opcode() == Some(amdxdna_ioctl::packet::Opcode::CmdChain))
    });
    let packet = if chain { Value::Null } else { describe(known, handle) };
    json!({ "bo": handle, "packet": packet })
}
