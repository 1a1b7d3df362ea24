//! Templates in the shape of the well-known families, against renderings written out by hand.

use std::time::{Duration, UNIX_EPOCH};

use super::*;
use serde_json::json;

fn special(bos: &str, eos: &str) -> SpecialTexts {
    SpecialTexts { bos: bos.into(), eos: eos.into() }
}

fn render_with(
    source: &str,
    special: &SpecialTexts,
    messages: &[Message],
    options: &RenderOptions,
) -> String {
    ChatTemplate::from_source(source, special).unwrap().render(messages, options).unwrap()
}

fn render(source: &str, bos: &str, eos: &str, messages: &[Message]) -> String {
    render_with(source, &special(bos, eos), messages, &RenderOptions::default())
}

fn talk() -> [Message; 4] {
    [
        Message::system("Be brief."),
        Message::user("Hi"),
        Message::assistant("Hello!"),
        Message::user("2+2?"),
    ]
}

#[test]
fn chatml_family() {
    let source = "{% for m in messages %}
{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' -}}
{% endif %}";
    let expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n\
                    <|im_start|>assistant\nHello!<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n\
                    <|im_start|>assistant\n";
    assert_eq!(render(source, "", "", &talk()), expected);
    assert_eq!(
        ChatTemplate::chatml().render(&talk(), &RenderOptions::default()).unwrap(),
        expected
    );
}

#[test]
fn chatml_with_a_default_system_message() {
    // SmolLM2 and Qwen2.5 add their own system message
    let source = "{%- if messages[0].role != 'system' -%}<|im_start|>system\nYou help.<|im_end|>\n{% endif -%}
{%- for message in messages -%}
<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    let source = source.replace("\\n", "\n");
    assert_eq!(
        render(&source, "", "", &[Message::user("Hi")]),
        "<|im_start|>system\nYou help.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    );
}

#[test]
fn llama2_family() {
    let source = "{% if messages[0]['role'] == 'system' %}
    {%- set system = '<<SYS>>\\n' + messages[0]['content'] | trim + '\\n<</SYS>>\\n\\n' %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = '' %}
{%- endif %}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate') }}
    {%- endif %}
    {%- if loop.first %}{% set content = system + message['content'] %}
    {%- else %}{% set content = message['content'] %}{% endif %}
    {%- if message['role'] == 'user' %}
        {{- bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
    {%- elif message['role'] == 'assistant' %}
        {{- ' ' + content.strip() + ' ' + eos_token }}
    {%- endif %}
{%- endfor %}";
    assert_eq!(
        render(source, "<s>", "</s>", &talk()),
        "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Hello! </s><s>[INST] 2+2? [/INST]"
    );
    let template = ChatTemplate::from_source(source, &special("<s>", "</s>")).unwrap();
    let twice = [Message::user("a"), Message::user("b")];
    let error = template.render(&twice, &RenderOptions::default()).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Template);
    assert_eq!(error.message(), "the chat template refuses these messages: roles must alternate");
}

#[test]
fn llama3_family() {
    let source = "{{- bos_token }}
{%- if date_string is not defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}{% set system_message = '' %}{% endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}
{{- 'Today Date: ' + date_string + '\\n\\n' }}
{{- system_message }}
{{- '<|eot_id|>' }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}";
    let options = RenderOptions {
        now: Some(UNIX_EPOCH + Duration::from_secs(1_720_188_307)),
        ..RenderOptions::default()
    };
    let special = special("<|begin_of_text|>", "<|eot_id|>");
    assert_eq!(
        render_with(
            source,
            &special,
            &[Message::system(" Be brief. "), Message::user("Hi")],
            &options
        ),
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nToday Date: 05 Jul 2024\n\nBe brief.<|eot_id|>\
         <|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    );
    let mut dated = options.clone();
    dated.variables.insert("date_string".into(), json!("1 Jan 2000"));
    let text = render_with(source, &special, &[Message::user("Hi")], &dated);
    assert!(text.contains("Today Date: 1 Jan 2000\n\n<|eot_id|>"), "{text}");
}

#[test]
fn mistral_family() {
    let source = "{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set ns = namespace(last=0) %}
{%- for message in loop_messages %}{% if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message['role'] == 'user' %}
        {%- if loop.index0 == ns.last and system_message is defined %}
            {{- '[INST] ' + system_message + '\\n\\n' + message['content'] + '[/INST]' }}
        {%- else %}
            {{- '[INST] ' + message['content'] + '[/INST]' }}
        {%- endif %}
    {%- elif message['role'] == 'assistant' %}
        {{- ' ' + message['content'] + eos_token }}
    {%- else %}
        {{- raise_exception('Only user and assistant roles are supported') }}
    {%- endif %}
{%- endfor %}";
    assert_eq!(
        render(source, "<s>", "</s>", &talk()),
        "<s>[INST] Hi[/INST] Hello!</s>[INST] Be brief.\n\n2+2?[/INST]"
    );
}

#[test]
fn gemma_family() {
    let source = "{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = '' -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = 'model' -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else '') }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}{{ item['text'] | trim }}{%- endfor -%}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}";
    assert_eq!(
        render(source, "<bos>", "<eos>", &talk()),
        "<bos><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nHello!<end_of_turn>\n\
         <start_of_turn>user\n2+2?<end_of_turn>\n<start_of_turn>model\n"
    );
}

#[test]
fn phi_family() {
    let source = "{% for message in messages %}{% if message['role'] in ['system', 'user', 'assistant'] %}{{'<|' + message['role'] + '|>\\n' + message['content'] + '<|end|>\\n'}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}";
    assert_eq!(
        render(source, "", "<|endoftext|>", &talk()[1..3]),
        "<|user|>\nHi<|end|>\n<|assistant|>\nHello!<|end|>\n<|assistant|>\n"
    );
    let closed = RenderOptions { add_generation_prompt: false, ..RenderOptions::default() };
    assert!(
        render_with(source, &special("", "<|endoftext|>"), &talk()[1..3], &closed)
            .ends_with("Hello!<|end|>\n<|endoftext|>")
    );
}

#[test]
fn qwen3_family() {
    let source = "{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {{- '# Tools\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if message.role == 'user' and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.last_query_index = index %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- set content = message.content %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is defined and message.reasoning_content is not none %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.last_query_index and reasoning %}
            {{- '<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- content }}
        {%- if message.tool_calls %}
            {%- for call in message.tool_calls %}
                {{- '\\n<tool_call>\\n{\"name\": \"' + call.name + '\", \"arguments\": ' }}
                {%- if call.arguments is string %}{{ call.arguments }}{% else %}{{ call.arguments | tojson }}{% endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}";
    let messages = [
        Message::user("Hi"),
        Message::assistant("<think>\nhm\n</think>\n\nHello!"),
        Message::user("2+2?"),
        Message::assistant("")
            .with("tool_calls", json!([{"name": "sum", "arguments": {"x": [2, 2]}}])),
    ];
    let mut options = RenderOptions {
        tools: Some(json!([{"name": "sum", "tags": ["a", "<b>"]}])),
        ..RenderOptions::default()
    };
    options.variables.insert("enable_thinking".into(), json!(false));
    assert_eq!(
        render_with(source, &SpecialTexts::default(), &messages, &options),
        "<|im_start|>system\n# Tools\n<tools>\n{\"name\": \"sum\", \"tags\": [\"a\", \"<b>\"]}\n</tools><|im_end|>\n\
         <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n\
         <|im_start|>user\n2+2?<|im_end|>\n\
         <|im_start|>assistant\n\n<tool_call>\n{\"name\": \"sum\", \"arguments\": {\"x\": [2, 2]}}\n</tool_call><|im_end|>\n\
         <|im_start|>assistant\n<think>\n\n</think>\n\n"
    );
}

#[test]
fn deepseek_family() {
    let source = "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% set ns = namespace(is_first=false, system_prompt='') %}{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.system_prompt = message['content'] %}{%- endif %}{%- endfor %}{{bos_token}}{{ns.system_prompt}}{%- for message in messages %}{%- if message['role'] == 'user' %}{{'<｜User｜>' + message['content']}}{%- endif %}{%- if message['role'] == 'assistant' and message['content'] is not none %}{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{'<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>'}}{%- endif %}{%- endfor -%}{% if add_generation_prompt %}{{'<｜Assistant｜>'}}{% endif %}";
    let messages = [
        Message::system("Be brief."),
        Message::user("Hi"),
        Message::assistant("<think>hm</think>Hello!"),
        Message::user("2+2?"),
    ];
    assert_eq!(
        render(source, "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", &messages),
        "<｜begin▁of▁sentence｜>Be brief.<｜User｜>Hi<｜Assistant｜>Hello!<｜end▁of▁sentence｜><｜User｜>2+2?<｜Assistant｜>"
    );
}

#[test]
fn granite_family() {
    let source = "{%- if messages[0]['role'] == 'system' %}
     {%- set system_message = messages[0]['content'] %}
     {%- set loop_messages = messages[1:] %}
 {%- else %}
     {%- set system_message = 'Today is ' + strftime_now('%B %d, %Y') + '.' %}
     {%- set loop_messages = messages %}
 {%- endif %}
 {{- '<|start_of_role|>system<|end_of_role|>' + system_message + '<|end_of_text|>\\n' }}
 {%- for message in loop_messages %}
     {{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' + message['content'] + '<|end_of_text|>\\n' }}
     {%- if loop.last and add_generation_prompt %}
         {{- '<|start_of_role|>assistant' }}
             {%- if controls %}
                 {{- ' ' + controls | tojson() }}
             {%- endif %}
         {{- '<|end_of_role|>' }}
     {%- endif %}
 {%- endfor %}";
    let mut options = RenderOptions {
        now: Some(UNIX_EPOCH + Duration::from_secs(1_720_188_307)),
        ..RenderOptions::default()
    };
    options.variables.insert("controls".into(), json!({"length": "short", "originality": 2}));
    assert_eq!(
        render_with(source, &SpecialTexts::default(), &[Message::user("Hi")], &options),
        "<|start_of_role|>system<|end_of_role|>Today is July 05, 2024.<|end_of_text|>\n\
         <|start_of_role|>user<|end_of_role|>Hi<|end_of_text|>\n\
         <|start_of_role|>assistant {\"length\": \"short\", \"originality\": 2}<|end_of_role|>"
    );
}

#[test]
fn training_marks_are_ignored() {
    let source = "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}[{{ m.content }}]{% endif %}{% continue %}{% endfor %}";
    assert_eq!(render(source, "", "", &talk()[1..3]), "[Hi]Hello!");
}

#[test]
fn indented_json_is_pythons() {
    let source = "{{ tools | tojson(indent=2) }}";
    let options = RenderOptions { tools: Some(json!([{"a": 1}])), ..RenderOptions::default() };
    assert_eq!(
        render_with(source, &SpecialTexts::default(), &[], &options),
        "[\n  {\n    \"a\": 1\n  }\n]"
    );
}

#[test]
fn broken_and_missing_templates_fall_back_with_a_warning() {
    for (source, reason) in [
        (None, "has no chat template"),
        (Some("  "), "has no chat template"),
        (Some("{% for m in messages %}{{ m.content "), "is broken in line 1"),
        (Some("\n{{ messages | no_such_filter }}"), "no_such_filter"),
        (
            Some(
                "{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}",
            ),
            "broken",
        ),
        (Some("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}"), "broken"),
    ] {
        let template = ChatTemplate::from_source_or_chatml(source, &SpecialTexts::default());
        let warning = template.warning().unwrap_or_else(|| panic!("{source:?}"));
        assert!(warning.contains(reason) && warning.contains("using ChatML"), "{warning}");
        let text = template.render(&[Message::user("Hi")], &RenderOptions::default()).unwrap();
        assert_eq!(text, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
        assert_eq!(template.stop_strings(), ["<|im_end|>"]);
    }
    let error = ChatTemplate::from_source("{{ x", &SpecialTexts::default()).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Template);
}

#[test]
fn templates_cannot_reach_files() {
    let source = "{% include '/etc/passwd' %}";
    assert!(ChatTemplate::from_source(source, &SpecialTexts::default()).is_err());
}

#[test]
fn the_bos_text_is_not_doubled() {
    assert_eq!(without_bos("<s>[INST]", "<s>", true), "[INST]");
    assert_eq!(without_bos("<s>[INST]", "<s>", false), "<s>[INST]");
    assert_eq!(without_bos("[INST]", "<s>", true), "[INST]");
    assert_eq!(without_bos("x", "", true), "x");
}
