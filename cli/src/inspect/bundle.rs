//! A bundle directory.

use super::sheet::Sheet;
use super::{Report, VERSION, sha256, stream};
use runtime::bundle::{Bundle, BundleError, LayerKind};
use runtime::reference::is_reference;
use runtime::txn::Stream;
use serde_json::{Value, json};
use std::path::Path;

/// What one instruction stream of a bundle does.
struct Entry {
    kernel: String,
    /// M, K, N of the matrix; N = 1 for a vector.
    shape: [usize; 3],
    /// Row chunks of one dispatch; 0 for a GEMV.
    chunks: usize,
    context: String,
    path: String,
    stream: Stream,
}

/// Explains a bundle. That it opens means that every file of it holds together.
pub(super) fn explain(path: &Path, ops: bool) -> Result<Report, BundleError> {
    let bundle = Bundle::open(path)?;
    let entries = entries(&bundle)?;
    let mut sheet = Sheet::default();
    let manifest = &bundle.manifest;
    let text = &manifest.text;
    sheet.line("bundle");
    let attention = text.layers.iter().filter(|kind| **kind == LayerKind::Attention).count();
    sheet.row(
        "text",
        format_args!(
            "{} layers ({} lin, {attention} att), width {}, MLP {}, vocabulary {}, {}",
            text.layers.len(),
            text.layers.len() - attention,
            text.hidden,
            text.intermediate,
            text.vocab,
            text.format.name()
        ),
    );
    match &manifest.vision {
        Some(vision) => sheet.row(
            "vision",
            format_args!("{} blocks, width {}, patches of {}", vision.depth, vision.hidden, vision.patch),
        ),
        None => sheet.row("vision", "none"),
    };
    let tensors: Vec<usize> = bundle.tensor_names().filter_map(|name| bundle.tensor_bytes(name)).collect();
    let bytes: usize = tensors.iter().sum();
    sheet.row("tensors", format_args!("{}, {bytes} bytes", tensors.len()));
    let (cases, runs) = (manifest.tokcases.len(), manifest.refs.len());
    sheet.row("references", format_args!("{runs} runs, {cases} tokenizer cases"));
    let mut contexts = Vec::new();
    let mut contexts_json = Vec::new();
    for record in manifest.xclbins.values() {
        let xclbin = bundle.xclbin(&record.key)?;
        let kind = if is_reference(&xclbin.pdi) { "reference" } else { "compiled" };
        contexts.push([
            record.key.clone(),
            record.kernel.clone(),
            xclbin.column_width.to_string(),
            kind.to_owned(),
            xclbin.pdi.len().to_string(),
            record.path.clone(),
        ]);
        contexts_json.push(json!({
            "key": record.key, "kernel": record.kernel, "path": record.path, "columns": xclbin.column_width,
            "kernel_id": xclbin.kernel_id, "buffers": xclbin.buffers, "reference": is_reference(&xclbin.pdi),
            "pdi_bytes": xclbin.pdi.len(), "pdi_sha256": sha256(&xclbin.pdi),
        }));
    }
    sheet.table(["context", "kernel", "columns", "cores", "PDI bytes", "file"], &contexts);
    let rows: Vec<[String; 11]> = entries.iter().map(row).collect();
    sheet.table(["kernel", "M", "K", "N", "chunks", "context", "ops", "A bytes", "B bytes", "C bytes", "file"], &rows);
    if ops {
        for entry in &entries {
            sheet.line("");
            sheet.line(&entry.path);
            stream::list(&mut sheet, &entry.stream);
        }
    }
    let report = json!({
        "version": VERSION,
        "kind": "bundle",
        "text": {
            "layers": text.layers.iter().map(|kind| kind.key()).collect::<Vec<_>>(),
            "hidden": text.hidden, "intermediate": text.intermediate, "vocab": text.vocab,
            "format": text.format.name(),
        },
        "vision": manifest.vision.as_ref().map(|vision| json!({
            "depth": vision.depth, "hidden": vision.hidden, "patch": vision.patch,
        })),
        "tensors": { "count": tensors.len(), "bytes": bytes },
        "references": runs,
        "tokenizer_cases": cases,
        "contexts": contexts_json,
        "streams": entries.iter().map(|entry| entry_json(entry, ops)).collect::<Vec<_>>(),
    });
    Ok(Report { text: sheet.finish(), json: report, damage: None })
}

fn entries(bundle: &Bundle) -> Result<Vec<Entry>, BundleError> {
    let read = |path: &str| {
        let wrong = |what: String| BundleError::Kernel { path: bundle.dir().join(path), what };
        Stream::read(&bundle.file(path)?).map_err(|error| wrong(error.to_string()))
    };
    let mut entries = Vec::new();
    for gemm in bundle.manifest.gemms.values() {
        for (index, chunk) in gemm.chunks.iter().enumerate() {
            entries.push(Entry {
                kernel: format!("gemm {}", gemm.key),
                shape: [gemm.m * (index + 1), gemm.k, gemm.n],
                chunks: index + 1,
                context: chunk.ctx.clone(),
                path: chunk.insts.clone(),
                stream: read(&chunk.insts)?,
            });
        }
    }
    for gemv in bundle.manifest.gemvs.values() {
        entries.push(Entry {
            kernel: format!("gemv {}", gemv.key),
            shape: [gemv.m, gemv.k, 1],
            chunks: 0,
            context: gemv.ctx.clone(),
            path: gemv.insts.clone(),
            stream: read(&gemv.insts)?,
        });
    }
    Ok(entries)
}

fn row(entry: &Entry) -> [String; 11] {
    let moved = |argument: usize| {
        let traffic = entry.stream.traffic().get(argument);
        traffic.map_or(0, |traffic| traffic.read.saturating_add(traffic.written)).to_string()
    };
    let [m, k, n] = entry.shape.map(|size| size.to_string());
    [
        entry.kernel.clone(),
        m,
        k,
        n,
        if entry.chunks == 0 { "-".to_owned() } else { entry.chunks.to_string() },
        entry.context.clone(),
        entry.stream.operations().len().to_string(),
        moved(0),
        moved(1),
        moved(2),
        entry.path.clone(),
    ]
}

fn entry_json(entry: &Entry, ops: bool) -> Value {
    let [m, k, n] = entry.shape;
    let mut report = json!({
        "kernel": entry.kernel, "m": m, "k": k, "n": n, "chunks": entry.chunks, "context": entry.context,
        "path": entry.path, "sha256": sha256(entry.stream.bytes()), "bytes": entry.stream.bytes().len(),
        "operations": entry.stream.operations().len(),
        "arguments": stream::arguments(&entry.stream),
    });
    if ops && let Value::Object(fields) = &mut report {
        fields.insert("ops".to_owned(), stream::list_json(&entry.stream));
    }
    report
}
