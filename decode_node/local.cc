#include "decode_node/local.h"

#include "prefill_node/daemon.h"
#include "transport/inproc/inproc_transport.h"

namespace akv::decode {
namespace {

prefill::Config prefill_config(const Config& config) {
  prefill::Config prefill;
  prefill.threads = config.threads;
  prefill.outbox_bytes = config.outbox_bytes;
  prefill.max_prefill_bytes = config.max_prefill_bytes;
  prefill.transfer_timeout_ms = config.transfer_timeout_ms;
  prefill.max_queue_tokens = config.max_queue_tokens;
  return prefill;
}

class LocalPrefillImpl : public LocalPrefill {
 public:
  LocalPrefillImpl(const prefill::ServiceOptions& options,
                   std::shared_ptr<const model::Model> model,
                   std::unique_ptr<prefill::PromptEngine> engine, const model::Tokenizer& tokenizer,
                   MetricsRegistry& metrics, Logger log, std::function<void(PeerEvent&&)> emit,
                   std::unique_ptr<transport::Sender> sender,
                   std::unique_ptr<transport::Receiver> receiver)
      : budget_bytes_(options.outbox_bytes + options.scheduler.max_prefill_bytes),
        probe_(metrics, /*shared_process=*/true),
        receiver_(std::move(receiver)),
        sender_(std::move(sender)),
        service_(std::make_unique<prefill::PrefillService>(
            std::move(model), tokenizer, std::move(engine), options, *sender_, probe_, log,
            [emit = std::move(emit)](uint64_t, prefill::Event&& event) {
              std::visit([&](auto&& m) { emit(PeerEvent(std::forward<decltype(m)>(m))); },
                         std::move(event));
            })) {
    prefill::Levels levels = service_->levels();
    levels.queue_requests = nullptr;  // the front door's own gauges say it
    levels.queue_tokens = nullptr;
    levels.max_queue_tokens = nullptr;
    probe_.watch(metrics, std::move(levels));
  }
  ~LocalPrefillImpl() override { stop(); }

  std::unique_ptr<transport::Receiver> take_receiver() override { return std::move(receiver_); }
  void handle(PrefillCommand&& command) override { service_->handle(0, std::move(command)); }
  void drain() override { service_->drain(); }
  bool idle() const override { return service_->idle(); }
  proto::Load load() const override { return service_->load(); }
  uint64_t budget_bytes() const override { return budget_bytes_; }
  void stop() override {
    service_->stop();
    sender_.reset();
  }

 private:
  const uint64_t budget_bytes_;
  prefill::Probe probe_;
  std::unique_ptr<transport::Receiver> receiver_;
  std::unique_ptr<transport::Sender> sender_;
  std::unique_ptr<prefill::PrefillService> service_;
};

}  // namespace

Result<std::unique_ptr<LocalPrefill>> LocalPrefill::create(
    const Config& config, const EngineDevice& device, std::shared_ptr<const model::Model> model,
    const model::Tokenizer& tokenizer, MetricsRegistry& metrics, Logger log,
    std::function<void(PeerEvent&&)> emit) {
  const auto network = transport::make_inproc_network();
  const transport::TransportConfig options;
  AKV_ASSIGN_OR_RETURN(auto receiver, transport::make_inproc_receiver(network, options));
  AKV_ASSIGN_OR_RETURN(auto sender, transport::make_inproc_sender(network, options));
  const prefill::Config prefill = prefill_config(config);
  AKV_ASSIGN_OR_RETURN(auto engine, prefill::make_engine(prefill, device, model));
  prefill::ServiceOptions service = prefill.service_options(device);
  // The decode engine takes the other half of a GPU.
  if (device.is_gpu() && config.max_prefill_bytes == 0) service.scheduler.max_prefill_bytes /= 2;
  return std::unique_ptr<LocalPrefill>(std::make_unique<LocalPrefillImpl>(
      service, std::move(model), std::move(engine), tokenizer, metrics, std::move(log),
      std::move(emit), std::move(sender), std::move(receiver)));
}

}  // namespace akv::decode
