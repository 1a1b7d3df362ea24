//! Makes a model answer with JSON of a schema, and reads it.
//!
//!     cargo run --release -p smolmaxxing --example structured_output -- MODEL
#![allow(clippy::print_stdout)]

use smolmaxxing::chat::Message;
use smolmaxxing::grammar::Grammar;
use smolmaxxing::serde_json::{Value, json};
use smolmaxxing::{ChatOptions, Model, SamplerBuilder, Session};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Some(path) = std::env::args().nth(1) else {
        eprintln!("usage: structured_output MODEL");
        std::process::exit(2);
    };
    let schema = json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "maxLength": 30 },
            "age": { "type": "integer", "minimum": 0, "maximum": 120 },
            "city": { "enum": ["Paris", "Rome", "Berlin"] }
        },
        "required": ["name", "age", "city"],
        "additionalProperties": false
    });
    let model = Model::load(path)?;
    let grammar = Grammar::json_schema(&schema)?;
    let sampler = SamplerBuilder::new().temp(0.7).seed(1).grammar(grammar).build(&model)?;
    let mut session = Session::new(model.context().n_ctx(1024).build()?, sampler)?;
    let question = [Message::user("Invent a person and describe them as JSON.")];
    let text = session.chat(&question, &ChatOptions::default())?.collect_text()?;
    let person: Value = smolmaxxing::serde_json::from_str(&text)?;
    println!("{} is {} years old and lives in {}.", person["name"], person["age"], person["city"]);
    Ok(())
}
