//! An xclbin container.

use super::sheet::{Sheet, count};
use super::{Report, hex, image, sha256};
use runtime::pdi::{Pdi, PdiError};
use runtime::xclbin::{Container, Group, Image, Instance, Kernel};
use serde_json::{Value, json};

/// Explains a file that begins as an xclbin.
pub(super) fn explain(bytes: &[u8], ops: bool) -> Result<Report, String> {
    let container = Container::parse(bytes).map_err(|error| format!("xclbin: {}", error.0))?;
    let images: Vec<Result<Pdi<'_>, PdiError>> =
        container.partition.images.iter().map(|image| Pdi::parse(image.bytes)).collect();
    let mut sheet = Sheet::default();
    sheet.line(format_args!("xclbin, {}", count(bytes.len() as u64, "byte")));
    sheet.row("sha256", sha256(bytes));
    head(&mut sheet, &container);
    tables(&mut sheet, &container);
    let mut damage = None;
    for (index, (found, pdi)) in container.partition.images.iter().zip(&images).enumerate() {
        sheet.line("");
        sheet.line(format_args!("PDI {index}, {} at byte {}", count(found.bytes.len() as u64, "byte"), found.offset));
        match pdi {
            Ok(pdi) => image::describe(&mut sheet, pdi, found.bytes, ops),
            Err(error) => {
                // The place in the file, not in the image.
                let what = format!("PDI {index}: byte {}: {}", found.offset + error.offset, error.what);
                sheet.row("damaged", &what);
                damage.get_or_insert(what);
            }
        }
    }
    Ok(Report { text: sheet.finish(), json: json(&container, &images, ops), damage })
}

fn head(sheet: &mut Sheet, container: &Container<'_>) {
    let header = &container.header;
    let (major, minor, patch) = header.version;
    let signed = if header.signed { "signed" } else { "not signed" };
    let platform = if header.platform.is_empty() { "none" } else { header.platform.as_str() };
    sheet.row("uuid", hex(&header.uuid));
    sheet.row(
        "version",
        format_args!("{major}.{minor}.{patch}, mode {}, actions {}, {signed}", header.mode, header.actions),
    );
    sheet.row("platform", platform);
    let partition = &container.partition;
    let starts: Vec<String> = partition.start_columns.iter().map(ToString::to_string).collect();
    sheet.row(
        "partition",
        format_args!(
            "{}, start at {}, {} operations a cycle",
            count(partition.column_width.into(), "column"),
            if starts.is_empty() { "any".to_owned() } else { starts.join(", ") },
            partition.ops_per_cycle
        ),
    );
}

fn tables(sheet: &mut Sheet, container: &Container<'_>) {
    let sections = container.sections.iter().map(|section| {
        let (offset, size) = (section.offset.to_string(), section.bytes.len().to_string());
        [section.kind.to_string(), section.kind_name().to_owned(), section.name.clone(), offset, size]
    });
    sheet.table(["kind", "section", "name", "byte", "bytes"], &sections.collect::<Vec<_>>());
    let memories = container.memories.iter().map(|memory| {
        let used = if memory.used { "yes" } else { "no" };
        [memory.tag.clone(), memory.kilobytes.to_string(), format!("{:#x}", memory.base), used.to_owned()]
    });
    sheet.table(["memory", "KiB", "base", "used"], &memories.collect::<Vec<_>>());
    let kernels = container.kernels.iter().map(|kernel| {
        [
            kernel.name.clone(),
            kernel.id.map_or("none".to_owned(), |id| format!("{id:#x}")),
            kernel.functional.to_string(),
            instances(container, kernel).map(|instance| instance.name.clone()).collect::<Vec<_>>().join(", "),
            image_of(container, kernel).map_or("none".to_owned(), |index| index.to_string()),
            arguments(kernel),
        ]
    });
    sheet.table(["kernel", "id", "cu_func", "instances", "PDI", "arguments"], &kernels.collect::<Vec<_>>());
    let groups = container.partition.images.iter().enumerate().flat_map(|(index, image)| {
        image.groups.iter().map(move |group| {
            let ids = group.kernel_ids.iter().map(|id| format!("{id:#x}")).collect::<Vec<_>>().join(", ");
            [index.to_string(), group.name.clone(), group_kind(group).to_owned(), group.pdi_id.to_string(), ids]
        })
    });
    sheet.table(["PDI", "group", "type", "PDI id", "kernel ids"], &groups.collect::<Vec<_>>());
}

fn instances<'c>(container: &'c Container<'_>, kernel: &'c Kernel) -> impl Iterator<Item = &'c Instance> {
    container.instances.iter().filter(|instance| instance.kernel() == kernel.name)
}

/// Which image the kernel runs on.
fn image_of(container: &Container<'_>, kernel: &Kernel) -> Option<usize> {
    let image: &Image<'_> = container.partition.image(kernel.id?)?;
    container.partition.images.iter().position(|other| other.offset == image.offset)
}

/// `opcode@0 instr@8`: names and places in the command.
fn arguments(kernel: &Kernel) -> String {
    let argument = |argument: &runtime::xclbin::Argument| match argument.offset {
        Some(offset) => format!("{}@{offset}", argument.name),
        None => argument.name.clone(),
    };
    kernel.arguments.iter().map(argument).collect::<Vec<_>>().join(" ")
}

fn group_kind(group: &Group) -> &'static str {
    match group.kind {
        1 => "primary",
        2 => "lite",
        3 => "pre and post",
        _ => "unknown",
    }
}

fn json(container: &Container<'_>, images: &[Result<Pdi<'_>, PdiError>], ops: bool) -> Value {
    let header = &container.header;
    let (major, minor, patch) = header.version;
    let partition = &container.partition;
    json!({
        "kind": "xclbin",
        "uuid": hex(&header.uuid),
        "tools": format!("{major}.{minor}.{patch}"),
        "timestamp": header.timestamp,
        "mode": header.mode,
        "actions": header.actions,
        "signed": header.signed,
        "platform": header.platform,
        "sections": container.sections.iter().map(|section| json!({
            "kind": section.kind, "type": section.kind_name(), "name": section.name,
            "offset": section.offset, "bytes": section.bytes.len(),
        })).collect::<Vec<_>>(),
        "memories": container.memories.iter().map(|memory| json!({
            "tag": memory.tag, "kilobytes": memory.kilobytes, "base": memory.base, "used": memory.used,
        })).collect::<Vec<_>>(),
        "instances": container.instances.iter().map(|instance| json!({
            "name": instance.name, "type": instance.kind, "properties": instance.properties,
        })).collect::<Vec<_>>(),
        "kernels": container.kernels.iter().map(|kernel| json!({
            "name": kernel.name, "id": kernel.id, "cu_func": kernel.functional, "buffers": kernel.buffers(),
            "pdi": image_of(container, kernel),
            "instances": instances(container, kernel).map(|instance| &instance.name).collect::<Vec<_>>(),
            "arguments": kernel.arguments.iter().map(|argument| json!({
                "id": argument.id, "name": argument.name, "size": argument.size, "offset": argument.offset,
            })).collect::<Vec<_>>(),
        })).collect::<Vec<_>>(),
        "partition": {
            "columns": partition.column_width,
            "start_columns": partition.start_columns,
            "operations_per_cycle": partition.ops_per_cycle,
        },
        "pdis": partition.images.iter().zip(images).map(|(image, pdi)| json!({
            "uuid": hex(&image.uuid), "offset": image.offset, "bytes": image.bytes.len(),
            "sha256": sha256(image.bytes),
            "groups": image.groups.iter().map(|group| json!({
                "name": group.name, "type": group.kind, "pdi_id": group.pdi_id, "kernel_ids": group.kernel_ids,
            })).collect::<Vec<_>>(),
            "pdi": pdi.as_ref().map(|pdi| image::json(pdi, image.bytes, ops)).ok(),
        })).collect::<Vec<_>>(),
    })
}
