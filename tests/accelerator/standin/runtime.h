// The stand-in's devices, copy counts, memory and random numbers.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <pybind11/pybind11.h>

#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace py = pybind11;
using c10::Device, c10::DeviceIndex, c10::DispatchKey, c10::DispatchKeySet;

namespace {

constexpr auto kDevice = c10::DeviceType::PrivateUse1;
constexpr DeviceIndex kMaxDevices = 2;
const DispatchKeySet kDeviceKeys(DispatchKey::PrivateUse1);
const DispatchKeySet kCpuKeys(DispatchKey::CPU);

thread_local DeviceIndex current_device = 0;

// As for CUDA, CUDA_VISIBLE_DEVICES limits the number. Ray sets it for each worker, so it is read on every call.
DeviceIndex device_count() {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr) return kMaxDevices;
  const std::string text(visible);
  if (text.empty() || text[0] == '-') return 0;
  const auto listed = 1 + std::count(text.begin(), text.end(), ',');
  return static_cast<DeviceIndex>(std::min<long>(kMaxDevices, listed));
}

// ---- Counts of copies ----

struct Count {
  int64_t copies = 0;
  int64_t bytes = 0;
};
enum Direction { kToDevice, kToHost };

std::mutex count_mutex;
std::map<std::pair<Direction, std::string>, Count> counts;

// The innermost Python line outside torch. The threads of the backward pass have none.
std::string python_line() {
  py::gil_scoped_acquire gil;
  py::object frame = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  for (; frame && !frame.is_none(); frame = frame.attr("f_back")) {
    const auto file = frame.attr("f_code").attr("co_filename").cast<std::string>();
    if (file.find("/torch/") != std::string::npos) continue;
    return file + ":" + py::str(frame.attr("f_lineno")).cast<std::string>();
  }
  return "autograd";
}

void count(Direction direction, int64_t bytes) {
  if (bytes == 0) return;
  const auto line = python_line();  // before the lock: another thread may hold the GIL and wait for the lock
  std::lock_guard lock(count_mutex);
  auto& found = counts[{direction, line}];
  found.copies += 1;
  found.bytes += bytes;
}

// ---- Failures ----

// CUDA finds an index out of bounds in the kernel. After that, every call fails until the process ends.
std::atomic<bool> poisoned = false;

void check_context() {
  if (poisoned) throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, 710, "device-side assert triggered");
}

// ---- Memory ----

struct Memory final : c10::DeviceAllocator {
  // Keeps the host memory behind an allocation.
  struct Block {
    DeviceIndex device;
    size_t bytes;
    at::DataPtr data;      // of an allocation
    c10::Storage storage;  // of the output of a CPU kernel
  };

  at::DataPtr allocate(size_t bytes) override {
    auto data = c10::GetCPUAllocator()->allocate(bytes);
    void* pointer = data.get();
    return adopt(pointer, new Block{current_device, bytes, std::move(data), {}});
  }

  at::DataPtr adopt(const c10::Storage& output, DeviceIndex device) {
    return adopt(output.mutable_data(), new Block{device, output.nbytes(), {}, output});
  }

  at::DataPtr adopt(void* pointer, Block* block) {
    std::unique_ptr<Block> owner(block);
    {
      std::lock_guard lock(mutex);
      auto& mine = stats[block->device];
      const auto used = static_cast<size_t>(mine.allocated_bytes[0].current);
      if (block->bytes > 0 && used + block->bytes > limit) {
        mine.num_ooms += 1;
        TORCH_CHECK_WITH(OutOfMemoryError, false, "standin out of memory. Tried to allocate ", block->bytes,
                         " bytes; ", used, " of ", limit, " are in use");
      }
      mine.allocated_bytes[0].increase(block->bytes);
      mine.reserved_bytes[0].increase(block->bytes);
    }
    return {pointer, owner.release(), &Memory::release, Device(kDevice, block->device)};
  }

  static void release(void* context);

  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const at::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
    std::lock_guard lock(mutex);
    return stats.at(device);
  }
  void resetAccumulatedStats(DeviceIndex) override {}
  void resetPeakStats(DeviceIndex device) override {
    std::lock_guard lock(mutex);
    stats.at(device).allocated_bytes[0].reset_peak();
    stats.at(device).reserved_bytes[0].reset_peak();
  }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override {
    std::lock_guard lock(mutex);
    return {limit - stats.at(device).allocated_bytes[0].current, limit};
  }

  std::mutex mutex;
  size_t limit = size_t{1} << 40;
  std::array<c10::CachingDeviceAllocator::DeviceStats, kMaxDevices> stats;
};

Memory& memory() {
  static auto* instance = new Memory;  // never destroyed: tensors may outlive static objects
  return *instance;
}

void Memory::release(void* context) {
  std::unique_ptr<Block> block(static_cast<Block*>(context));
  std::lock_guard lock(memory().mutex);
  auto& mine = memory().stats[block->device];
  mine.allocated_bytes[0].decrease(block->bytes);
  mine.reserved_bytes[0].decrease(block->bytes);
}

// Page-locked host memory, as far as `is_pinned` can tell.
struct Pinned final : at::Allocator {
  at::DataPtr allocate(size_t bytes) override {
    auto* data = new at::DataPtr(c10::GetCPUAllocator()->allocate(bytes));
    std::lock_guard lock(mutex);
    ranges[data->get()] = bytes;
    return {data->get(), data, &Pinned::release, Device(c10::DeviceType::CPU)};
  }
  static void release(void* context);
  bool holds(const void* pointer) {
    std::lock_guard lock(mutex);
    auto next = ranges.upper_bound(pointer);
    if (next == ranges.begin()) return false;
    const auto& [start, bytes] = *std::prev(next);
    return pointer < static_cast<const char*>(start) + bytes;
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

  std::mutex mutex;
  std::map<const void*, size_t> ranges;
};

Pinned& pinned() {
  static auto* instance = new Pinned;
  return *instance;
}

void Pinned::release(void* context) {
  std::unique_ptr<at::DataPtr> data(static_cast<at::DataPtr*>(context));
  std::lock_guard lock(pinned().mutex);
  pinned().ranges.erase(data->get());
}

// ---- Random numbers: a CPU generator of its own per device ----

struct Generator final : c10::GeneratorImpl {
  explicit Generator(DeviceIndex index) : GeneratorImpl(Device(kDevice, index), kDeviceKeys) {}
  void set_current_seed(uint64_t seed) override { cpu.set_current_seed(seed); }
  void set_offset(uint64_t offset) override { cpu.set_offset(offset); }
  uint64_t get_offset() const override { return cpu.get_offset(); }
  uint64_t current_seed() const override { return cpu.current_seed(); }
  uint64_t seed() override { return cpu.unsafeGetGeneratorImpl()->seed(); }
  void set_state(const c10::TensorImpl& state) override { cpu.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return cpu.unsafeGetGeneratorImpl()->get_state(); }
  GeneratorImpl* clone_impl() const override {
    auto* copy = new Generator(device_.index());
    copy->cpu = cpu.clone();
    return copy;
  }
  at::Generator cpu = at::detail::createCPUGenerator();
};

const at::Generator& default_generator(DeviceIndex index) {
  static const auto* all = new std::array{at::make_generator<Generator>(0), at::make_generator<Generator>(1)};
  return all->at(index < 0 ? current_device : index);
}

// ---- Streams and events: kernels run at once, so there is nothing to wait for ----

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kDevice; }
  Device exchangeDevice(Device device) const override {
    const auto before = getDevice();
    setDevice(device);
    return before;
  }
  Device getDevice() const override { return {kDevice, current_device}; }
  void setDevice(Device device) const override {
    TORCH_CHECK(device.index() < device_count(), "invalid device ordinal: ", device, " of ", int{device_count()});
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.index() >= 0) current_device = device.index();
  }
  c10::Stream getStream(Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getDefaultStream(Device device) const override { return getStream(device); }
  c10::Stream getStreamFromGlobalPool(Device device, bool) const override { return getStream(device); }
  c10::Stream getNewStream(Device device, int) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return getStream(stream.device()); }
  DeviceIndex deviceCount() const noexcept override { return device_count(); }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(DeviceIndex) const override {}
  void record(void**, const c10::Stream&, DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  double elapsedTime(void*, void*, DeviceIndex) const override { return 0; }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return device_count(); }
  DeviceIndex getCurrentDevice() const override { return current_device; }
  void setCurrentDevice(DeviceIndex device) const override { Guard().setDevice({kDevice, device}); }
  DeviceIndex exchangeDevice(DeviceIndex device) const override {
    return Guard().exchangeDevice({kDevice, device}).index();
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override { return exchangeDevice(device); }
  const at::Generator& getDefaultGenerator(DeviceIndex device) const override { return default_generator(device); }
  at::Generator getNewGenerator(DeviceIndex device) const override { return at::make_generator<Generator>(device); }
  Device getDeviceFromPtr(void*) const override { return {kDevice, current_device}; }
  bool isPinnedPtr(const void* pointer) const override { return pinned().holds(pointer); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned(); }
};

}  // namespace
