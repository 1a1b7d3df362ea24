//! `smol kernels`: results and speed of the packed layouts.

mod common;

use common::{output, smol};
use serde_json::Value;

fn kernels(args: &[&str], code: i32) -> (String, String) {
    let folder = tempfile::tempdir().unwrap();
    output(smol(folder.path()).arg("kernels").args(args), code)
}

fn report(args: &[&str]) -> Value {
    let (json, stderr) = kernels(&[args, &["--json"]].concat(), 0);
    assert_eq!(stderr, "");
    assert_eq!(json.lines().count(), 1);
    serde_json::from_str(&json).unwrap()
}

#[test]
fn each_layout_is_right() {
    let report = report(&["--quick"]);
    assert!(report["clock_ghz"].is_null());
    let layouts = report["layouts"].as_array().unwrap();
    assert!(!layouts.is_empty());
    for layout in layouts {
        assert_eq!(layout["right"], true, "{layout}");
        assert_eq!(layout["speeds"], Value::Array(vec![]));
        let checks = layout["checks"].as_array().unwrap();
        for name in ["self-test", "bits", "MUL_MAT", "MUL_MAT_ID", "GET_ROWS"] {
            assert!(checks.iter().any(|check| check["name"] == name), "{name}: {layout}");
        }
        let limit = layout["error_limit"].as_f64().unwrap();
        for check in checks.iter().filter(|check| check["shape"].is_string()) {
            assert!(check["columns"].as_u64().unwrap() > 0, "{check}");
            assert!(check["error"].as_f64().is_none_or(|error| error <= limit), "{check}");
        }
    }
    let (table, _) = kernels(&["--quick"], 0);
    for layout in layouts {
        assert!(table.contains(layout["name"].as_str().unwrap()), "{table}");
    }
    assert!(!table.contains("WRONG") && !table.contains("Gw/s"), "{table}");
}

#[test]
fn speed_of_one_layout() {
    let all = report(&["--quick"]);
    let first = &all["layouts"][0];
    let name = first["name"].as_str().unwrap();
    let args =
        ["--layout", name, "--shape", "65x1024,4x33x512,3x100", "--time", "0.05", "--columns", "8"];
    let folder = tempfile::tempdir().unwrap();
    let mut command = smol(folder.path());
    let (json, stderr) = output(command.arg("kernels").args(args).arg("--json"), 0);
    assert!(stderr.contains("3x100"), "{stderr}");
    let report: Value = serde_json::from_str(&json).unwrap();
    assert!(report["clock_ghz"].as_f64().unwrap() > 0.0);
    let layouts = report["layouts"].as_array().unwrap();
    assert_eq!(layouts.len(), 1);
    let speeds = layouts[0]["speeds"].as_array().unwrap();
    let shapes: Vec<_> = speeds.iter().map(|speed| speed["shape"].as_str().unwrap()).collect();
    assert_eq!(shapes, ["65x1024", "65x1024", "4x33x512", "4x33x512"]);
    assert_eq!(layouts[0]["skipped"][0]["shape"], "3x100");
    for (i, speed) in speeds.iter().enumerate() {
        let number = |field: &str| speed[field].as_f64().unwrap_or_else(|| panic!("{field}"));
        let weights = if i < 2 { 65.0 * 1024.0 } else { 33.0 * 512.0 * number("used") };
        let products = weights * number("tokens");
        let speed_of = products / number("best_s") / 1e9;
        assert!((number("gweights_s") / speed_of - 1.0).abs() < 1e-6, "{speed}");
        let ratio = number("stock_best_s") / number("best_s");
        assert!((number("ratio") / ratio - 1.0).abs() < 1e-6, "{speed}");
        assert!(number("median_s") >= number("best_s"));
        assert!(speed["stock"] == "plain" || speed["stock"] == "repack", "{speed}");
        // Only for one token all of the weights are read once.
        assert_eq!(speed["gb_s"].is_f64(), i % 2 == 0, "{speed}");
        assert_eq!(speed["tokens"] == 1, i % 2 == 0, "{speed}");
    }
    let (table, _) = output(smol(folder.path()).arg("kernels").args(args), 0);
    assert!(table.contains("| 4x33x512 |") && table.contains("of memory"), "{table}");
}

#[test]
fn layouts_of_one_type() {
    let all = report(&["--quick"]);
    let weight_type = all["layouts"][0]["type"].as_str().unwrap();
    let some = report(&["--quick", "--type", &weight_type.to_uppercase()]);
    let count = |report: &Value| {
        let layouts = report["layouts"].as_array().unwrap();
        layouts.iter().filter(|layout| layout["type"] == weight_type).count()
    };
    assert_eq!(count(&some), count(&all));
    assert_eq!(count(&some), some["layouts"].as_array().unwrap().len());
}

#[test]
fn what_does_not_exist_is_named_with_what_does() {
    for (args, words) in [
        (&["--type", "q9_9"][..], &["q9_9", "types: "][..]),
        (&["--layout", "x"], &["`x`", "layouts: "]),
        (&["--isa", "z80"], &["z80", "smol doctor"]),
        (&["--shape", "4"], &["ROWSxCOLUMNS"]),
        (&["--shape", "0x256"], &["no size can be 0"]),
        (&["--time", "0"], &["0.01 to 600"]),
    ] {
        let (stdout, stderr) = kernels(args, 2);
        assert_eq!(stdout, "");
        for word in words {
            assert!(stderr.contains(word), "{word} in {stderr}");
        }
    }
}

#[test]
fn each_level_of_the_build_is_right() {
    let (json, _) = {
        let folder = tempfile::tempdir().unwrap();
        output(smol(folder.path()).args(["doctor", "--json"]), 0)
    };
    let doctor: Value = serde_json::from_str(&json).unwrap();
    for level in doctor["build"]["cpu_levels"].as_array().unwrap() {
        if level["missing"].as_array().is_some_and(|missing| missing.is_empty()) {
            let name = level["name"].as_str().unwrap();
            assert_eq!(report(&["--quick", "--isa", name])["level"], name);
        }
    }
}
