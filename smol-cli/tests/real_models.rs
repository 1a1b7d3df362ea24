//! The real models, fetched as a user would: into the user's own cache folder, once.

use assert_cmd::Command;
use smolmaxxing::Model;
use smolmaxxing::chat::{ChatTemplate, Message, RenderOptions};
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

/// Room for a download on a slow line.
const LIMIT: Duration = Duration::from_secs(1200);

fn smol(args: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_smol"));
    let output = command.args(args).timeout(LIMIT).output().expect("smol starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "smol {args:?}: {stderr}");
    String::from_utf8(output.stdout).expect("output is UTF-8")
}

/// Where a model of the catalogue lies; fetches it when it is missing.
fn pulled(name: &str) -> PathBuf {
    // One at a time: tests run in parallel, and the second would only wait for the first one's lock.
    static PULLING: Mutex<()> = Mutex::new(());
    let _guard = PULLING.lock();
    PathBuf::from(smol(&["pull", name]).trim_end())
}

fn json(args: &[&str]) -> serde_json::Value {
    serde_json::from_str(&smol(args)).expect("one JSON value")
}

#[test]
fn smollm2_knows_the_capital_of_france() {
    pulled("smollm2-135m");
    let prompt = ["-p", "The capital of France is", "--raw", "-n", "8", "--temp", "0"];
    let text = smol(&[&["run"], &prompt[..]].concat());
    assert!(text.contains("Paris"), "{text}");
    // Greedy: the same again, through the file's path.
    let path = pulled("smollm2-135m");
    let again = smol(&[&["run", "-m", path.to_str().unwrap()], &prompt[..]].concat());
    assert_eq!(text, again);
}

#[test]
fn gemma3_goes_on_with_a_text() {
    pulled("gemma3-270m");
    let report = json(&[
        "run",
        "-m",
        "gemma3-270m",
        "-p",
        "Monday, Tuesday, Wednesday, Thursday,",
        "--raw",
        "-n",
        "4",
        "--temp",
        "0",
        "--json",
    ]);
    assert!(report["text"].as_str().unwrap().contains("Friday"), "{report}");
    assert_eq!(report["stop"], "length");
}

#[test]
fn the_chat_remembers() {
    pulled("smollm2-135m");
    let mut command = Command::new(env!("CARGO_BIN_EXE_smol"));
    command.args(["chat", "--temp", "0", "-n", "24"]).timeout(LIMIT);
    let output = command
        .write_stdin("What is the capital of France?\n/stats\nAnd of Italy?\n/stats\n")
        .output();
    let output = output.expect("smol starts");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{stdout}");
    let stats: Vec<_> = stdout.lines().filter(|line| line.contains("reused")).collect();
    assert_eq!(stats.len(), 2, "{stdout}");
    assert!(stats[0].contains("(0 reused)") && !stats[1].contains("(0 reused)"), "{stats:?}");
}

#[test]
fn a_schema_is_followed() {
    pulled("smollm2-135m");
    let mut schema = tempfile::NamedTempFile::new().unwrap();
    schema
        .write_all(
            br#"{"type":"object","properties":{"name":{"type":"string","maxLength":12},"age":{"type":"integer"}},
                "required":["name","age"],"additionalProperties":false}"#,
        )
        .unwrap();
    let path = schema.path().to_str().unwrap();
    let text = smol(&[
        "run",
        "-p",
        "Describe a person as JSON.",
        "--json-schema",
        path,
        "--seed",
        "1",
        "-n",
        "60",
    ]);
    let person: serde_json::Value =
        serde_json::from_str(text.trim()).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert!(person["name"].is_string() && person["age"].is_i64(), "{person}");
}

#[test]
fn english_is_less_surprising_than_noise() {
    let model = pulled("smollm2-135m");
    let measure = |text: &str| {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let path = file.path().to_str().unwrap();
        json(&["perplexity", "-m", model.to_str().unwrap(), "-f", path, "-c", "128", "--json"])
    };
    let english = measure(include_str!("../../docs/building.md"));
    let mut state = 1_u32;
    let mut letter = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        char::from(b'a' + (state >> 24) as u8 % 26)
    };
    let noise = measure(&(0..1500).map(|_| letter()).collect::<String>());
    let field = |report: &serde_json::Value, name: &str| report[name].as_f64().unwrap();
    assert!(
        field(&english, "perplexity") < field(&noise, "perplexity") / 10.0,
        "{english} {noise}"
    );
    // Random letters carry log2(26) = 4.7 bits each; English text about 1 for a model of this size.
    assert!((0.5..2.5).contains(&field(&english, "bits_per_byte")), "{english}");
    assert!((4.0..7.0).contains(&field(&noise, "bits_per_byte")), "{noise}");
}

#[test]
fn the_template_in_smollm2_has_a_system_message() {
    let path = pulled("smollm2-135m");
    let model = Model::load(path).unwrap();
    let template = ChatTemplate::for_model(&model);
    assert_eq!(template.warning(), None);
    let options = RenderOptions::default();
    let text = template.render(&[Message::user("Hi")], &options).unwrap();
    assert_eq!(
        text,
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n\
         <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    );
    let turns = [
        Message::system("Be brief."),
        Message::user("Hi"),
        Message::assistant("Hello!"),
        Message::user("2+2?"),
    ];
    let text = template.render(&turns, &options).unwrap();
    assert_eq!(text, ChatTemplate::chatml().render(&turns, &options).unwrap());
    // Special tokens are read as such, and none is doubled.
    let vocab = model.vocab();
    let tokens = template.tokenize(&vocab, &turns, &options).unwrap();
    let starts =
        tokens.iter().filter(|&&token| vocab.text(token).as_deref() == Some("<|im_start|>"));
    assert_eq!(starts.count(), 5);
    assert_eq!(vocab.detokenize(&tokens, true).unwrap(), text.as_bytes());
}
