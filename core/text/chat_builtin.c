/* Templates for models whose file has none. Written for Colibri in the formats that the models' publishers describe;
 * the marks and the order are facts about the models. BOS is the tokenizer's business. */
#include "text/chat_impl.h"

#define EACH     "{% for message in messages %}"
#define END_EACH "{% endfor %}"
#define SYSTEM_FIRST                                                                                                   \
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set messages = messages[1:] %}{% "  \
    "endif %}"
/* user and assistant in turn, beginning with a user */
#define ALTERNATE                                                                                                      \
    "{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"                                                      \
    "{{ raise_exception('roles must alternate: user, assistant, user, ...') }}{% endif %}"
#define ONLY_THREE                                                                                                     \
    "{% if message.role not in ['system', 'user', 'assistant'] %}"                                                     \
    "{{ raise_exception('unknown role: ' ~ message.role) }}{% endif %}"
#define GENERATION(text) "{% if add_generation_prompt %}" text "{% endif %}"

#define FULL "\xEF\xBD\x9C" /* the wide bar of DeepSeek's marks */

const clb_chat_format clb_chat_builtins[] = {
    {.name = "chatml",
     .source =
         EACH "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}" END_EACH GENERATION(
             "{{ '<|im_start|>assistant\\n' }}")},
    {.name = "llama3",
     .source =
         EACH "{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + "
              "'<|eot_id|>' }}" END_EACH GENERATION("{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}")},
    {.name = "llama2",
     .source = SYSTEM_FIRST EACH ALTERNATE
     "{% if message.role == 'user' %}{{ ('<s>' if not loop.first else '') + '[INST] ' }}"
     "{% if loop.first and system is defined %}{{ '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' }}{% endif %}"
     "{{ message.content | trim + ' [/INST]' }}"
     "{% else %}{{ ' ' + message.content | trim + ' </s>' }}{% endif %}" END_EACH},
    {.name = "gemma",
     .source = SYSTEM_FIRST EACH ALTERNATE
     "{{ '<start_of_turn>' + ('model' if message.role == 'assistant' else 'user') + '\\n' }}"
     "{% if loop.first and system is defined %}{{ system | trim + '\\n\\n' }}{% endif %}"
     "{{ message.content | trim + '<end_of_turn>\\n' }}" END_EACH GENERATION("{{ '<start_of_turn>model\\n' }}")},
    {.name = "mistral-v1",
     .source = SYSTEM_FIRST EACH ALTERNATE
     "{% if message.role == 'user' %}{{ '[INST] ' + (system + '\\n\\n' if loop.first and system is defined else '') + "
     "message.content + ' [/INST]' }}{% else %}{{ ' ' + message.content + '</s>' }}{% endif %}" END_EACH},
    {.name = "mistral-v3",
     .source = SYSTEM_FIRST EACH ALTERNATE
     "{% if message.role == 'user' %}{{ '[INST] ' + (system + '\\n\\n' if loop.last and system is defined else '') + "
     "message.content + '[/INST]' }}{% else %}{{ ' ' + message.content + '</s>' }}{% endif %}" END_EACH},
    {.name = "mistral-v7",
     .source = EACH ONLY_THREE
     "{% if message.role == 'system' %}{{ '[SYSTEM_PROMPT]' + message.content + '[/SYSTEM_PROMPT]' }}"
     "{% elif message.role == 'user' %}{{ '[INST]' + message.content + '[/INST]' }}"
     "{% else %}{{ message.content + '</s>' }}{% endif %}" END_EACH},
    {.name = "deepseek-v2",
     .source =
         EACH ONLY_THREE "{% if message.role == 'user' %}{{ 'User: ' + message.content + '\\n\\n' }}"
                         "{% elif message.role == 'assistant' %}{{ 'Assistant: ' + message.content + '<" FULL
                         "end\xE2\x96\x81of\xE2\x96\x81sentence" FULL ">' }}"
                         "{% else %}{{ message.content + '\\n\\n' }}{% endif %}" END_EACH GENERATION("Assistant:")},
    {.name = "deepseek-v3",
     .source =
         "{% for message in messages %}{% if message.role == 'system' %}{{ message.content }}{% endif %}{% endfor "
         "%}" EACH ONLY_THREE "{% if message.role == 'user' %}{{ '<" FULL "User" FULL ">' + message.content }}"
         "{% elif message.role == 'assistant' %}{{ '<" FULL "Assistant" FULL
         ">' + message.content.split('</think>')[-1] + '<" FULL "end\xE2\x96\x81of\xE2\x96\x81sentence" FULL
         ">' }}{% endif %}" END_EACH GENERATION("{{ '<" FULL "Assistant" FULL ">' }}")},
    {.name = "glm4",
     .source = "[gMASK]<sop>" EACH ONLY_THREE
               "{{ '<|' + message.role + '|>\\n' + message.content }}" END_EACH GENERATION("{{ '<|assistant|>\\n' }}")},
    {.name = "gpt-oss",
     .source =
         "{{ '<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\\nKnowledge cutoff: "
         "2024-06\\nCurrent date: ' + strftime_now('%Y-%m-%d') + '\\n\\nReasoning: medium\\n\\n# Valid channels: "
         "analysis, commentary, final. Channel must be included for every message.<|end|>' }}" EACH ONLY_THREE
         "{% if message.role == 'system' %}{{ '<|start|>developer<|message|># Instructions\\n\\n' + message.content + "
         "'\\n\\n<|end|>' }}"
         "{% elif message.role == 'user' %}{{ '<|start|>user<|message|>' + message.content + '<|end|>' }}"
         "{% elif loop.last and not add_generation_prompt %}{{ '<|start|>assistant<|channel|>final<|message|>' + "
         "message.content + '<|return|>' }}"
         "{% else %}{{ '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|end|>' }}{% endif "
         "%}" END_EACH GENERATION("<|start|>assistant")},
    {.name = "phi-3",
     .source = EACH "{{ '<|' + message.role + '|>\\n' + message.content + '<|end|>\\n' }}" END_EACH GENERATION(
         "{{ '<|assistant|>\\n' }}")},
    {.name = "zephyr",
     .source = EACH "{{ '<|' + message.role + '|>\\n' + message.content + '</s>\\n' }}" END_EACH GENERATION(
         "{{ '<|assistant|>\\n' }}")},
    {.name = "command-r",
     .source = EACH ONLY_THREE
     "{{ '<|START_OF_TURN_TOKEN|>' + {'system': '<|SYSTEM_TOKEN|>', 'user': '<|USER_TOKEN|>', 'assistant': "
     "'<|CHATBOT_TOKEN|>'}[message.role] + message.content | trim + '<|END_OF_TURN_TOKEN|>' }}" END_EACH GENERATION(
         "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>")},
    {.name = "granite",
     .source = EACH
     "{{ '<|start_of_role|>' + message.role + '<|end_of_role|>' + message.content + '<|end_of_text|>\\n' }}" END_EACH
         GENERATION("<|start_of_role|>assistant<|end_of_role|>")},
    {.name = NULL},
};
