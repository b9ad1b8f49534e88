#include "common/model/builtin_templates.h"

namespace akv::model {
namespace {

constexpr std::string_view kChatml =
    R"({%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\n' -}}
{%- endif -%})";

constexpr std::string_view kLlama3 =
    R"({{- bos_token -}}
{%- for message in messages -%}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' -}}
{{- message.content | trim + '<|eot_id|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}
{%- endif -%})";

constexpr std::string_view kZephyr =
    R"({%- for message in messages -%}
{{- '<|' + message.role + '|>\n' + message.content + eos_token + '\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|assistant|>\n' -}}
{%- endif -%})";

constexpr BuiltinTemplate kTemplates[] = {
    {"chatml", kChatml}, {"llama3", kLlama3}, {"zephyr", kZephyr}};

}  // namespace

std::span<const BuiltinTemplate> builtin_templates() { return kTemplates; }

}  // namespace akv::model
