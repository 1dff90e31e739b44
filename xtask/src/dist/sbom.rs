//! The bill of materials: every crate that is in the binary, in CycloneDX's JSON (specification 1.5).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const LIMIT: Duration = Duration::from_secs(120);
const TRIPLE: &str = "x86_64-unknown-linux-musl";

/// In hexadecimal digits.
pub(super) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Of the binary with this hash, made at this time.
///
/// # Errors
/// What cargo said.
pub(super) fn of(root: &Path, binary: &str, epoch: u64) -> Result<String, String> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root).args(["metadata", "--format-version", "1", "--locked", "--filter-platform", TRIPLE]);
    let text = crate::timed::timed(&mut command, LIMIT)?;
    let metadata: Value = serde_json::from_str(&text).map_err(|error| format!("cargo metadata: {error}"))?;
    document(&metadata, binary, epoch)
}

/// What the binary is made of: what it depends on, without what only tests and builds need.
fn document(metadata: &Value, binary: &str, epoch: u64) -> Result<String, String> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let id = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let packages: BTreeMap<String, Value> =
        list(&metadata["packages"]).into_iter().map(|package| (id(&package["id"]), package)).collect();
    let needs: BTreeMap<String, Vec<String>> = list(&metadata["resolve"]["nodes"])
        .into_iter()
        .map(|node| {
            // A kind of null is what the code itself uses.
            let used = |dep: &Value| list(&dep["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
            (id(&node["id"]), list(&node["deps"]).iter().filter(|dep| used(dep)).map(|dep| id(&dep["pkg"])).collect())
        })
        .collect();
    let start = packages.iter().find(|(_, package)| package["name"] == "qwen35-direct").map(|(id, _)| id.clone());
    let start = start.ok_or("cargo metadata knows no package qwen35-direct")?;
    let (mut seen, mut next) = (BTreeSet::new(), vec![start.clone()]);
    while let Some(one) = next.pop() {
        if seen.insert(one.clone()) {
            next.extend(needs.get(&one).into_iter().flatten().cloned());
        }
    }
    let reference = |id: &String| {
        let package = &packages[id];
        format!("pkg:cargo/{}@{}", id_text(&package["name"]), id_text(&package["version"]))
    };
    let component = |id: &String| {
        let package = &packages[id];
        let reference = reference(id);
        let mut component = json!({
            "type": "library", "bom-ref": reference, "purl": reference, "name": package["name"], "version": package["version"],
        });
        if let Some(license) = package["license"].as_str() {
            // Old manifests write a slash for "or".
            component["licenses"] = json!([{"expression": license.replace('/', " OR ")}]);
        }
        component
    };
    let mut components: Vec<Value> = seen.iter().filter(|id| **id != start).map(component).collect();
    components.sort_by_key(|component| component["bom-ref"].to_string());
    let mut dependencies: Vec<Value> = seen
        .iter()
        .map(|id| {
            let mut on: Vec<String> = needs.get(id).into_iter().flatten().map(reference).collect();
            on.sort();
            on.dedup();
            json!({"ref": reference(id), "dependsOn": on})
        })
        .collect();
    dependencies.sort_by_key(|dependency| dependency["ref"].to_string());
    let mut own = component(&start);
    own["type"] = json!("application");
    own["hashes"] = json!([{"alg": "SHA-256", "content": binary}]);
    let document = json!({
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {"timestamp": timestamp(epoch), "component": own},
        "components": components, "dependencies": dependencies,
    });
    Ok(format!("{document:#}\n"))
}

fn id_text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Seconds since 1970 as a date and time, as the specification wants it.
fn timestamp(epoch: u64) -> String {
    runtime::date::utc(epoch, "%FT%TZ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        // date -u -d @N +%FT%TZ
        for (epoch, date) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
        ] {
            assert_eq!(timestamp(epoch), date);
        }
    }

    #[test]
    fn what_only_tests_need_is_not_in_it() {
        let package =
            |id: &str, name: &str| json!({"id": id, "name": name, "version": "1.0.0", "license": "MIT/Apache-2.0"});
        let dep = |id: &str, kind: Value| json!({"pkg": id, "dep_kinds": [{"kind": kind}]});
        let metadata = json!({
            "packages": [package("a", "qwen35-direct"), package("b", "used"), package("c", "tested"), package("d", "deep")],
            "resolve": {"nodes": [
                {"id": "a", "deps": [dep("b", Value::Null), dep("c", json!("dev"))]},
                {"id": "b", "deps": [dep("d", Value::Null)]}, {"id": "c", "deps": []}, {"id": "d", "deps": []},
            ]},
        });
        let found: Value = serde_json::from_str(&document(&metadata, "00", 0).unwrap()).unwrap();
        let names: Vec<&str> =
            found["components"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["deep", "used"]);
        assert_eq!(found["components"][0]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(found["metadata"]["component"]["hashes"][0]["content"], "00");
    }
}
