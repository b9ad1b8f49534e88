#include "decode_node/api/api_server.h"

#include <algorithm>
#include <charconv>
#include <ctime>
#include <utility>

#include "common/base/ids.h"
#include "common/model/tokenizer.h"
#include "common/net/admin.h"
#include "common/net/http_router.h"
#include "decode_node/api/api_keys.h"
#include "decode_node/api/call.h"
#include "decode_node/api/generation.h"
#include "decode_node/api/prompt.h"
#include "proto/api_reply.h"

namespace akv::decode::api {
namespace {

using net::HttpExchange;
using net::HttpRequest;
using ExchangePtr = std::shared_ptr<HttpExchange>;

// A '%' that no two hexadecimal digits follow stays.
std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    uint8_t byte = 0;
    const char* digits = text.data() + i + 1;
    const bool coded = text[i] == '%' && i + 2 < text.size() &&
                       std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2;
    out += coded ? static_cast<char>(byte) : text[i];
    if (coded) i += 2;
  }
  return out;
}

class Server final : public ApiServer {
 public:
  Server(ApiOptions options, GenerationService& service, ApiObserver* observer)
      : options_(std::move(options)),
        service_(service),
        observer_(observer),
        keys_(options_.api_key_file) {
    add_routes();
  }

  Status start() {
    AKV_RETURN_IF_ERROR(keys_.reload());
    AKV_ASSIGN_OR_RETURN(http_, net::HttpServer::start(options_.http, [this](HttpRequest&& request,
                                                                             ExchangePtr exchange) {
                           router_.handle(std::move(request), std::move(exchange));
                         }));
    return {};
  }

  HostPort address() const override { return http_->address(); }
  size_t connections() const override { return http_->connections(); }
  Status reload_keys() override { return keys_.reload(); }
  void stop(int grace_ms) override { http_->stop(grace_ms); }

 private:
  using CallPtr = std::unique_ptr<Call>;
  using Handler = void (Server::*)(const HttpRequest&, CallPtr);

  enum class Access { kOpen, kKey };
  void add(const char* method, const char* path, Handler handler, Access access,
           ApiObserver* observer = nullptr) {
    router_.add(method, path,
                [this, handler, access, observer](HttpRequest&& request, ExchangePtr exchange) {
                  auto call = std::make_unique<Call>(request, std::move(exchange), observer);
                  if (access == Access::kKey && !keys_.allows(request)) return refuse_key(*call);
                  if (is_encoded(request)) return refuse_encoding(*call);
                  (this->*handler)(request, std::move(call));
                });
  }

  void add_routes() {
    // Only generations are observed: probes and tokenizers' calls would drown them.
    add("POST", "/v1/chat/completions", &Server::chat, Access::kKey, observer_);
    add("POST", "/v1/completions", &Server::completion, Access::kKey, observer_);
    add("POST", "/tokenize", &Server::tokenize_text, Access::kKey);
    add("POST", "/detokenize", &Server::detokenize, Access::kKey);
    add("GET", "/v1/models", &Server::models, Access::kOpen);
    add("GET", "/models", &Server::models, Access::kOpen);
    add("GET", "/v1/models/", &Server::one_model, Access::kOpen);
    add("GET", "/version", &Server::version, Access::kOpen);
    net::add_admin_routes(router_, {[this] {
                                      const Readiness readiness = service_.readiness();
                                      return net::AdminState{readiness.ready, readiness.reason};
                                    },
                                    options_.metrics_text});
  }

  // Answers and reports an error that was found before the service was asked.
  static void reject(Call& call, const proto::ApiError& error, net::HttpHeaders headers = {}) {
    if (error.status == 501) headers.emplace_back("x-should-retry", "false");
    call.fail(error, std::move(headers));
    call.report(outcome_of(error.status), error.status);
  }

  static void refuse_key(Call& call) {
    reject(call,
           {401, "a valid API key is needed: Authorization: Bearer KEY", "authentication_error",
            "invalid_api_key", ""},
           {{"WWW-Authenticate", "Bearer"}});
  }

  static bool is_encoded(const HttpRequest& request) {
    const std::string* coding = request.header("content-encoding");
    return coding != nullptr && *coding != "identity";
  }

  static void refuse_encoding(Call& call) {
    reject(call, {415, "bodies with a Content-Encoding are not taken", "invalid_request_error",
                  "unsupported_encoding", ""});
  }

  static void answer(Call& call, std::string json) {
    call.respond(std::move(json));
    call.report("ok", 200);
  }

  proto::ModelCard card() const {
    const ModelInfo& model = service_.model();
    return {model.name, model.created, model.context_length};
  }

  void models(const HttpRequest&, CallPtr call) {
    const proto::ModelCard only = card();
    answer(*call, proto::models_reply({&only, 1}));
  }

  void one_model(const HttpRequest& request, CallPtr call) {
    const std::string name = percent_decoded(request.path.substr(request.path.find("models/") + 7));
    if (name != service_.model().name)
      return reject(*call, unknown_model(service_.model(), name.substr(0, 256)));
    answer(*call, proto::model_reply(card()));
  }

  void version(const HttpRequest&, CallPtr call) {
    answer(*call, proto::version_reply(options_.version));
  }

  void tokenize_text(const HttpRequest& request, CallPtr call) {
    const ModelInfo& model = service_.model();
    const auto parsed = proto::parse_tokenize_request(request.body, options_.limits);
    if (!parsed) return reject(*call, parsed.error);
    const auto ids = tokenize(model, *parsed.value);
    if (!ids) return reject(*call, ids.error);
    std::optional<std::vector<std::string>> pieces;
    if (parsed.value->with_pieces) {
      pieces.emplace();
      for (const int32_t id : *ids.value) pieces->emplace_back(model.tokenizer->piece(id));
    }
    answer(*call, proto::tokenize_reply(*ids.value, pieces, model.context_length));
  }

  void detokenize(const HttpRequest& request, CallPtr call) {
    const ModelInfo& model = service_.model();
    const auto parsed = proto::parse_detokenize_request(request.body, options_.limits);
    if (!parsed) return reject(*call, parsed.error);
    const auto& ids = *parsed.value;
    const auto foreign =
        std::find_if(ids.begin(), ids.end(), [&](int32_t id) { return id >= model.vocab; });
    if (foreign != ids.end())
      return reject(*call, {400,
                            "'tokens' holds token " + std::to_string(*foreign) +
                                ", which is not in the vocabulary",
                            "invalid_request_error", "invalid_value", "tokens"});
    answer(*call, proto::detokenize_reply(model.tokenizer->decode(ids, false)));
  }

  void chat(const HttpRequest& request, CallPtr call) {
    const ModelInfo& model = service_.model();
    auto parsed = proto::parse_chat_request(request.body, options_.limits);
    if (!parsed) return reject(*call, parsed.error);
    proto::ChatRequest& chat = *parsed.value;
    if (const auto error = check_common(model, chat.common); error.status != 0)
      return reject(*call, error);
    auto ids =
        chat_prompt(model, chat.messages, chat.chat_template_kwargs, chat.add_generation_prompt);
    if (!ids) return reject(*call, ids.error);
    if (ids.value->empty())
      return reject(*call, {400, "the messages make an empty prompt", "invalid_request_error",
                            "empty_prompt", "messages"});
    GenerationSetup setup;
    setup.chat = true;
    generate(request, std::move(call), chat.common, {std::move(*ids.value)}, {}, std::move(setup));
  }

  void completion(const HttpRequest& request, CallPtr call) {
    const ModelInfo& model = service_.model();
    auto parsed = proto::parse_completion_request(request.body, options_.limits);
    if (!parsed) return reject(*call, parsed.error);
    proto::CompletionRequest& completion = *parsed.value;
    if (const auto error = check_common(model, completion.common); error.status != 0)
      return reject(*call, error);
    std::vector<PromptIds> prompts;
    std::vector<std::string> echoes;
    for (const proto::Prompt& prompt : completion.prompts) {
      auto ids = completion_prompt(model, prompt);
      if (!ids) return reject(*call, ids.error);
      if (completion.echo) {
        const auto* text = std::get_if<std::string>(&prompt);
        echoes.push_back(text != nullptr ? *text : model.tokenizer->decode(*ids.value, true));
      }
      prompts.push_back(std::move(*ids.value));
    }
    generate(request, std::move(call), completion.common, std::move(prompts), std::move(echoes),
             {});
  }

  // Null for a header that is no whole number of at least 1; longer times than ours are cut.
  std::optional<TimePoint> deadline_of(const HttpRequest& request) const {
    int64_t timeout_ms = options_.request_timeout_ms;
    if (const std::string* header = request.header("x-request-timeout-ms")) {
      uint64_t asked = 0;
      const auto [end, ec] =
          std::from_chars(header->data(), header->data() + header->size(), asked);
      const bool whole =
          end == header->data() + header->size() && ec != std::errc::invalid_argument;
      if (!whole || (ec == std::errc() && asked == 0)) return std::nullopt;
      // Beyond 64 bits is beyond any time-out.
      if (ec == std::errc() && asked < static_cast<uint64_t>(timeout_ms))
        timeout_ms = static_cast<int64_t>(asked);
    }
    return after_ms(timeout_ms);
  }

  // One choice per prompt and n; seeds differ between the n of one prompt.
  void generate(const HttpRequest& request, CallPtr call, const proto::CommonFields& common,
                std::vector<PromptIds> prompts, std::vector<std::string> echoes,
                GenerationSetup setup) {
    const uint64_t seed = common.has_seed ? common.sampling.seed : Id128::random().lo;
    const std::optional<TimePoint> deadline = deadline_of(request);
    if (!deadline)
      return reject(*call, {400, "the header x-request-timeout-ms takes a whole number from 1 on",
                            "invalid_request_error", "invalid_value", "x-request-timeout-ms"});
    for (size_t p = 0; p < prompts.size(); ++p) {
      const auto budget = output_budget(service_.model(), static_cast<int64_t>(prompts[p].size()),
                                        common.max_tokens);
      if (!budget) return reject(*call, budget.error);
      setup.prompt_tokens += static_cast<int64_t>(prompts[p].size());
      for (int i = 0; i < common.n; ++i) {
        GenerationSetup::ChoiceSetup choice;
        choice.request.request_id = call->request_id();
        choice.request.choice = static_cast<int>(setup.choices.size());
        choice.request.prompt_ids = prompts[p];
        choice.request.sampling = common.sampling;
        choice.request.sampling.seed = seed + static_cast<uint64_t>(i);
        choice.request.max_tokens = *budget.value;
        choice.request.kv = common.kv;
        choice.request.deadline = *deadline;
        choice.text = text_options(common);
        if (p < echoes.size()) choice.echo = echoes[p];
        setup.choices.push_back(std::move(choice));
      }
    }
    setup.stream = common.stream;
    setup.include_usage = common.stream && common.include_usage;
    setup.token_ids = common.return_token_ids;
    setup.logprobs = common.sampling.logprobs >= 0;
    setup.offsets = !setup.chat;
    setup.head = {(setup.chat ? "chatcmpl-" : "cmpl-") + Id128::random().hex(), std::time(nullptr),
                  service_.model().name, ""};
    std::make_shared<Generation>(std::move(setup), std::move(call), service_)->start();
  }

  static TextOptions text_options(const proto::CommonFields& common) {
    TextOptions options;
    options.stop = common.stop;
    options.include_stop = common.include_stop_str_in_output;
    options.skip_special = common.skip_special_tokens;
    options.min_tokens = common.sampling.min_tokens;
    options.logprobs = common.sampling.logprobs >= 0;
    options.token_ids = common.return_token_ids;
    return options;
  }

  const ApiOptions options_;
  GenerationService& service_;
  ApiObserver* const observer_;
  ApiKeys keys_;
  net::HttpRouter router_;
  std::unique_ptr<net::HttpServer> http_;
};

}  // namespace

Result<std::unique_ptr<ApiServer>> ApiServer::start(ApiOptions options, GenerationService& service,
                                                    ApiObserver* observer) {
  auto server = std::make_unique<Server>(std::move(options), service, observer);
  AKV_RETURN_IF_ERROR(server->start());
  return std::unique_ptr<ApiServer>(std::move(server));
}

}  // namespace akv::decode::api
