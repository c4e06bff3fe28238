//! Random bodies of all providers, with noise between their documents.

use serde_json::{Value, json};

/// Numbers that depend on a seed alone.
pub(super) struct BodyRandom(pub u64);

/// A body and its content type.
#[derive(Debug)]
pub(super) struct RandomBody {
    pub content_type: &'static str,
    pub bytes: Vec<u8>,
}

impl BodyRandom {
    pub(super) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    fn text(&mut self) -> String {
        let words =
            ["", "a", " word", "longer words of a text ", "ü", "語語", "🦀", "\"", "\\", "\n", "\u{1}", "/"];
        (0..self.below(6)).map(|_| self.pick(&words)).collect()
    }

    fn count(&mut self) -> Value {
        match self.below(12) {
            0 => Value::Null,
            1 => json!("7"),
            2 => json!(self.below(100) as f64 + 0.5),
            3 => json!(-1),
            _ => json!(self.below(100_000)),
        }
    }

    pub(super) fn body(&mut self) -> RandomBody {
        let (content_type, documents) = match self.below(6) {
            0 => ("text/event-stream", self.openai_chunks()),
            1 => ("text/event-stream", self.openai_events()),
            2 => ("text/event-stream", self.anthropic_events()),
            3 => ("application/x-ndjson", self.ollama_lines()),
            4 => ("text/event-stream", self.mixed_events()),
            _ => ("application/json", vec![self.document()]),
        };
        let bytes = match content_type {
            "text/event-stream" => self.event_stream(&documents),
            "application/x-ndjson" => self.lines(&documents),
            _ => serde_json::to_vec(&documents[0]).expect("it is JSON"),
        };
        RandomBody { content_type, bytes }
    }

    fn openai_usage(&mut self) -> Value {
        let mut usage = json!({ "prompt_tokens": self.count(), "completion_tokens": self.count() });
        if self.below(2) == 0 {
            usage["prompt_tokens_details"] = json!({ "cached_tokens": self.count() });
        }
        if self.below(4) == 0 {
            usage["cache_read_input_tokens"] = self.count();
        }
        usage["total_tokens"] = self.count();
        usage
    }

    fn openai_message(&mut self) -> Value {
        match self.below(6) {
            0 => json!({ "role": "assistant", "content": null, "reasoning_content": self.text() }),
            1 => {
                let text = self.text();
                json!({ "reasoning": text, "reasoning_content": text, "content": self.text() })
            }
            2 => {
                json!({ "tool_calls": [{ "index": 0, "function": { "name": "f", "arguments": self.text() } },
                { "custom": { "input": self.text() } }] })
            }
            3 => json!({ "refusal": self.text(), "function_call": { "arguments": self.text() } }),
            _ => json!({ "content": self.text() }),
        }
    }

    /// OpenAI chat completions and vLLM.
    fn openai_chunks(&mut self) -> Vec<Value> {
        let cumulative = self.below(2) == 0;
        let mut chunks = vec![];
        for _ in 0..self.below(8) {
            let choices: Vec<Value> = (0..self.below(3))
                .map(|at| json!({ "index": at, "delta": self.openai_message(), "finish_reason": null }))
                .collect();
            let usage = if cumulative { self.openai_usage() } else { Value::Null };
            chunks.push(json!({ "id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": choices,
                "usage": usage }));
        }
        if self.below(4) > 0 {
            chunks.push(json!({ "id": "chatcmpl-1", "choices": [], "usage": self.openai_usage() }));
        }
        chunks
    }

    fn response(&mut self, text: &str) -> Value {
        let usage = json!({ "input_tokens": self.count(), "output_tokens": self.count(),
            "input_tokens_details": { "cached_tokens": self.count() },
            "output_tokens_details": { "reasoning_tokens": self.count() } });
        json!({ "object": "response", "usage": usage, "output": [
            { "type": "reasoning", "summary": [{ "type": "summary_text", "text": self.text() }] },
            { "type": "message", "content": [{ "type": "output_text", "text": text }, { "refusal": self.text() }] },
            { "type": "function_call", "arguments": self.text() }] })
    }

    /// OpenAI Responses.
    fn openai_events(&mut self) -> Vec<Value> {
        let mut events =
            vec![json!({ "type": "response.created", "response": { "usage": null, "output": [] } })];
        let mut whole = String::new();
        for _ in 0..self.below(6) {
            let text = self.text();
            whole += &text;
            let kind = self.pick(&["response.output_text.delta", "response.function_call_arguments.delta"]);
            events.push(json!({ "type": kind, "sequence_number": 4, "delta": text }));
        }
        events.push(json!({ "type": "response.output_text.done", "text": whole }));
        events.push(json!({ "type": "response.content_part.done", "part": { "text": whole } }));
        if self.below(4) > 0 {
            events.push(json!({ "type": "response.completed", "response": self.response(&whole) }));
        }
        events
    }

    fn anthropic_usage(&mut self) -> Value {
        json!({ "input_tokens": self.count(), "output_tokens": self.count(),
            "cache_read_input_tokens": self.count(), "cache_creation_input_tokens": self.count() })
    }

    fn anthropic_events(&mut self) -> Vec<Value> {
        let usage = self.anthropic_usage();
        let mut events = vec![
            json!({ "type": "message_start", "message": { "content": [], "usage": usage } }),
            json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "text", "text": "" } }),
            json!({ "type": "ping" }),
        ];
        for _ in 0..self.below(8) {
            let member = self.pick(&["text", "thinking", "partial_json", "signature"]);
            events.push(json!({ "type": "content_block_delta", "delta": { member: self.text() } }));
        }
        if self.below(4) > 0 {
            let all = self.below(2) == 0;
            let usage =
                if all { self.anthropic_usage() } else { json!({ "output_tokens": self.below(10_000) }) };
            events.push(
                json!({ "type": "message_delta", "delta": { "stop_reason": "end_turn" }, "usage": usage }),
            );
        }
        events
    }

    fn ollama_lines(&mut self) -> Vec<Value> {
        let mut lines = vec![];
        for _ in 0..self.below(8) {
            lines.push(match self.below(3) {
                0 => json!({ "response": self.text(), "thinking": self.text(), "done": false }),
                _ => json!({ "message": { "content": self.text(), "thinking": self.text() }, "done": false }),
            });
        }
        if self.below(4) > 0 {
            lines
                .push(json!({ "message": { "content": "" }, "done": true, "prompt_eval_count": self.count(),
                "eval_count": self.count(), "total_duration": 5_191_566_416_u64 }));
        }
        lines
    }

    /// Events of one provider after those of another.
    fn mixed_events(&mut self) -> Vec<Value> {
        [self.anthropic_events(), self.openai_chunks(), self.ollama_lines(), self.openai_events()].concat()
    }

    fn document(&mut self) -> Value {
        match self.below(4) {
            0 => {
                json!({ "choices": [{ "message": self.openai_message() }, { "message": self.openai_message(),
                "text": self.text() }], "usage": self.openai_usage(), "cost": { "units": self.count() } })
            }
            1 => {
                let text = self.text();
                self.response(&text)
            }
            2 => json!({ "content": [{ "type": "text", "text": self.text() }, { "thinking": self.text() }],
                "usage": self.anthropic_usage() }),
            _ => {
                json!({ "response": self.text(), "prompt_eval_count": self.count(), "eval_count": self.count() })
            }
        }
    }

    fn event_stream(&mut self, events: &[Value]) -> Vec<u8> {
        // Few streams hold what is no JSON.
        let is_raw = self.below(4) == 0;
        let line_end = self.pick(&["\n", "\r\n", "\r"]);
        let mut body = self.pick(&["", "", "\u{feff}", "\u{feff}\n", "\n\n"]).to_owned();
        for event in events {
            let noise = [
                "",
                "",
                "",
                ": comment\n",
                "id: 7\n",
                "event: message_delta\n",
                "data: [DONE]\n\n",
                "data:\n\n",
                "data\n\n",
                "retry\n",
                "datax: {}\n",
                "\n",
                " data: {}\n",
                "data: {\"usage\":{\"output_tokens\":5}\n\n",
                "data: x\n\n",
                "dat",
            ];
            body += self.pick(&noise[..if is_raw { noise.len() } else { noise.len() - 3 }]);
            let text = if self.below(4) == 0 { format!("{event:#}") } else { event.to_string() };
            let colon = self.pick(&["data: ", "data:"]);
            for line in text.lines() {
                body += &format!("{colon}{line}\n");
            }
            let ends = ["\n", "\n", "\n\n", ":\n\n", "event: x\n\n", ""];
            body += self.pick(&ends[..if is_raw { 6 } else { 5 }]);
        }
        (body + "data: [DONE]\n\n").replace('\n', line_end).into_bytes()
    }

    fn lines(&mut self, documents: &[Value]) -> Vec<u8> {
        let mut body = String::new();
        let noise = ["", "", "", "\n", "[]\n", "x\n", "{\"eval_count\":7\n", "\u{feff}"];
        let most = if self.below(4) == 0 { noise.len() } else { 5 };
        for document in documents {
            body += self.pick(&noise[..most]);
            body += &format!("{document}{}", self.pick(&["\n", "\n", "\r\n", " \n"]));
        }
        body.into_bytes()
    }
}
