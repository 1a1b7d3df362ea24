//! What was built, for `build_info()` and for dependents (`DEP_SMOL_LLAMA_*`).

use crate::cpu_level::CpuLevel;
use crate::pin::Pin;
use crate::series::Series;
use crate::source::write_if_changed;
use crate::vars::Vars;
use std::fmt::Write;

pub fn write(
    vars: &Vars,
    pin: &Pin,
    series: &Series,
    levels: &[CpuLevel],
    compiler: Option<&str>,
) -> Result<(), String> {
    let mut text = String::from("BuildInfo {\n");
    let mut field = |name: &str, value: &dyn std::fmt::Debug| {
        writeln!(text, "    {name}: {value:?},").expect("writing to a String does not fail");
    };
    field("llama_version", &pin.llama_version);
    field("llama_commit", &pin.commit);
    field("ggml_version", &pin.ggml_version);
    field("target", &vars.target);
    field("compiler", &compiler.unwrap_or_default());
    field("patch_set", &series.digest());
    let preset = levels.first().and_then(|level| level.preset).unwrap_or_default();
    let tune = levels.first().and_then(|level| level.tune).unwrap_or_default();
    field("cpu_preset", &preset);
    field("cpu_tune", &tune);
    text.push_str("    cpu_levels: &[\n");
    for level in levels {
        writeln!(
            text,
            "        CpuLevel {{ name: {:?}, flags: {:?}, features: &{:?} }},",
            level.name,
            level.flags.join(" "),
            level.required,
        )
        .expect("writing to a String does not fail");
    }
    text.push_str("    ],\n    patches: &[\n");
    for patch in &series.patches {
        writeln!(
            text,
            "        PatchInfo {{ id: {:?}, file: {:?}, sha256: {:?}, applied: {:?}, purpose: {:?}, source: {:?}, \
             upstream: {:?}, test: {:?} }},",
            patch.id,
            patch.file,
            patch.sha256,
            patch.enabled,
            patch.purpose,
            patch.source,
            patch.upstream,
            patch.test,
        )
        .expect("writing to a String does not fail");
    }
    text.push_str("    ],\n}\n");
    write_if_changed(&vars.out_dir.join("build_info.rs"), text.as_bytes())?;
    // The same for tools that cannot run what was built.
    let json = json(vars, pin, series, levels, compiler).to_string();
    write_if_changed(&vars.out_dir.join("build_info.json"), json.as_bytes())?;

    let generated = vars.out_dir.join("generated");
    let header = |prefix: &str, version: &str| {
        format!(
            "#pragma once\n#define {prefix}_VERSION \"{version}\"\n#define {prefix}_COMMIT \"{}\"\n",
            pin.commit
        )
    };
    write_if_changed(
        &generated.join("ggml-version.h"),
        header("GGML", &pin.ggml_version).as_bytes(),
    )?;
    write_if_changed(
        &generated.join("llama-version.h"),
        header("LLAMA", &pin.llama_version).as_bytes(),
    )?;

    for (key, value) in [
        ("llama_version", pin.llama_version.as_str()),
        ("llama_commit", pin.commit.as_str()),
        (
            "cpu_levels",
            &levels.iter().map(|level| level.name.as_str()).collect::<Vec<_>>().join(","),
        ),
        ("cpu_preset", preset),
        ("cpu_tune", tune),
        ("patch_set", &series.digest()),
    ] {
        println!("cargo::metadata={key}={value}");
    }
    let applied: Vec<_> = series
        .patches
        .iter()
        .filter(|patch| patch.enabled)
        .map(|patch| patch.id.as_str())
        .collect();
    println!("cargo::metadata=patches={}", applied.join(","));
    println!("cargo::metadata=include={}", vars.manifest_dir.join("native").display());
    println!("cargo::metadata=names={}", vars.out_dir.join("include").display());
    for patch in &series.patches {
        println!("cargo::rustc-check-cfg=cfg(smol_patch, values({:?}))", patch.id);
        if series.enabled(&patch.id) {
            println!("cargo::rustc-cfg=smol_patch={:?}", patch.id);
        }
    }
    Ok(())
}

fn json(
    vars: &Vars,
    pin: &Pin,
    series: &Series,
    levels: &[CpuLevel],
    compiler: Option<&str>,
) -> serde_json::Value {
    let level = |level: &CpuLevel| {
        serde_json::json!({
            "name": level.name,
            "flags": level.flags.join(" "),
            "features": level.required,
        })
    };
    let patch = |patch: &crate::series::Patch| {
        serde_json::json!({
            "id": patch.id,
            "file": patch.file,
            "sha256": patch.sha256,
            "applied": patch.enabled,
            "purpose": patch.purpose,
        })
    };
    serde_json::json!({
        "llama_version": pin.llama_version,
        "llama_commit": pin.commit,
        "ggml_version": pin.ggml_version,
        "target": vars.target,
        "compiler": compiler.unwrap_or_default(),
        "cpu_preset": levels.first().and_then(|level| level.preset).unwrap_or_default(),
        "cpu_tune": levels.first().and_then(|level| level.tune).unwrap_or_default(),
        "cpu_levels": levels.iter().map(level).collect::<Vec<_>>(),
        "features": vars.features,
        "patch_set": series.digest(),
        "patches": series.patches.iter().map(patch).collect::<Vec<_>>(),
    })
}
