// A stand-in accelerator: a PrivateUse1 backend that runs the CPU's kernels on "device" memory, refuses what CUDA
// refuses, and counts the copies between host and device with the Python line that caused them.
//
// Device memory is host memory. A kernel sees CPU tensors that alias it, so nothing is copied but what CUDA would copy.

#include "runtime.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

using at::Tensor;
using c10::IValue;

namespace {

// A CPU tensor on the memory of a device tensor.
Tensor host_view(const Tensor& tensor) {
  const auto& storage = tensor.storage();
  c10::Storage host(c10::Storage::use_byte_size_t(), storage.nbytes(),
                    at::DataPtr(storage.mutable_data(), Device(c10::DeviceType::CPU)), nullptr, false);
  auto result = at::detail::make_tensor<c10::TensorImpl>(std::move(host), kCpuKeys, tensor.dtype());
  auto* impl = result.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return result;
}

c10::Storage adopt(const Tensor& output, DeviceIndex device) {
  const auto& storage = output.storage();
  return {c10::Storage::use_byte_size_t(), storage.nbytes(), memory().adopt(storage, device), &memory(), true};
}

bool on_device(const Tensor& tensor) { return tensor.defined() && tensor.device().type() == kDevice; }

// One call of a CPU kernel with device tensors.
struct Call {
  explicit Call(const c10::OperatorHandle& op) : schema(op.schema()), name(schema.name()) {}

  Tensor argument(const Tensor& tensor, const c10::Argument& declared) {
    if (!tensor.defined()) return tensor;
    if (!on_device(tensor)) {
      const bool index = declared.name() == "indices" && name.find("index") != std::string::npos;
      if (tensor.dim() > 0 && !index) stranger = declared.name();
      // CUDA copies indices to the device. For `index`, torch has done so before this call.
      if (tensor.dim() > 0 && index && name == "aten::_index_put_impl_") count(kToDevice, tensor.nbytes());
      return tensor;
    }
    TORCH_CHECK(!device || *device == tensor.device(), "Expected all tensors to be on the same device, but found ",
                *device, " and ", tensor.device(), " (", name, ")");
    device = tensor.device();
    // Outputs without elements may be resized, which an alias cannot be.
    const bool output = declared.alias_info() != nullptr && declared.alias_info()->isWrite();
    const bool fresh = output && tensor.numel() == 0;
    auto host = fresh ? at::empty(tensor.sizes(), tensor.options().device(at::kCPU)) : host_view(tensor);
    pairs.emplace_back(tensor, std::move(host));
    return pairs.back().second;
  }

  IValue argument(const IValue& value, const c10::Argument& declared) {
    if (value.isTensor()) return argument(value.toTensor(), declared);
    if (value.isTensorList()) {
      std::vector<Tensor> all;
      for (const Tensor& tensor : value.toTensorVector()) all.push_back(argument(tensor, declared));
      return all;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> all;
      for (const std::optional<Tensor>& tensor : value.toOptionalTensorList()) {
        all.push_back(tensor ? std::optional(argument(*tensor, declared)) : std::nullopt);
      }
      return all;
    }
    if (value.isDevice() && value.toDevice().type() == kDevice) return Device(c10::DeviceType::CPU);
    if (value.isGenerator()) {
      const auto generator = value.toGenerator();
      TORCH_CHECK(generator.device().type() == kDevice, "Expected a 'standin' generator but found '",
                  generator.device().type(), "' (", name, ")");
      return generator.get<Generator>()->cpu;
    }
    if (declared.name() == "generator" && value.isNone()) {
      return default_generator(device ? device->index() : -1).get<Generator>()->cpu;
    }
    return value;
  }

  // The device tensor of a tensor that the kernel returned.
  Tensor result(const Tensor& host) {
    if (!host.defined()) return host;
    for (const auto& [tensor, mine] : pairs) {
      if (mine.is_same(host)) return tensor;
      if (mine.storage().is_alias_of(host.storage())) {
        return at::native::as_strided_tensorimpl(tensor, host.sizes(), host.strides(), host.storage_offset());
      }
    }
    const auto index = device ? device->index() : current_device;
    auto wrapped = at::detail::make_tensor<c10::TensorImpl>(adopt(host, index), kDeviceKeys, host.dtype());
    wrapped.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
    return wrapped;
  }

  IValue result(const IValue& value) {
    if (value.isTensor()) return result(value.toTensor());
    if (value.isTensorList()) {
      std::vector<Tensor> all;
      for (const Tensor& tensor : value.toTensorVector()) all.push_back(result(tensor));
      return all;
    }
    if (value.isBool()) count(kToHost, 1);  // such as torch.equal
    return value;
  }

  // Moves the contents of outputs that the kernel resized to their device tensors.
  void resize_outputs() {
    for (const auto& [tensor, host] : pairs) {
      if (tensor.numel() == 0 && tensor.sizes() != host.sizes()) {
        auto* impl = tensor.unsafeGetTensorImpl();
        impl->set_storage_keep_dtype(adopt(host, tensor.device().index()));
        impl->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
      }
    }
  }

  const c10::FunctionSchema& schema;
  const std::string& name;
  std::optional<Device> device;
  std::string stranger;  // an argument on the host that must not be there
  std::vector<std::pair<Tensor, Tensor>> pairs;
};

void run_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  try {
    op.redispatchBoxed(kCpuKeys, stack);
  } catch (const c10::IndexError& error) {
    const auto text = error.msg();
    poisoned = text.find("out of bounds") != std::string::npos || text.find("index out of range") != std::string::npos;
    check_context();
    throw;
  }
}

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  check_context();
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  Call call(op);
  const auto& declared = op.schema().arguments();
  const auto first = stack->size() - declared.size();
  for (size_t i = 0; i < declared.size(); ++i) (*stack)[first + i] = call.argument((*stack)[first + i], declared[i]);
  TORCH_CHECK(!call.device || call.stranger.empty(), "Expected all tensors to be on the same device, but ",
              call.stranger, " is on cpu and others are on ", *call.device, " (", call.name, ")");
  if (call.name == "aten::nonzero") count(kToHost, sizeof(int64_t));  // the shape of the result depends on the data
  run_kernel(op, stack);
  call.resize_outputs();
  const auto returned = stack->size() - op.schema().returns().size();
  for (size_t i = returned; i < stack->size(); ++i) (*stack)[i] = call.result((*stack)[i]);
}

Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(*device);
  return at::detail::empty_generic(size, &memory(), kDeviceKeys, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(*device);
  return at::detail::empty_strided_generic(size, stride, &memory(), kDeviceKeys, c10::dtype_or_default(dtype));
}

// Bytes are counted after the conversion of the dtype on the host, as CUDA's copies do it.
Tensor copy_from(const Tensor& source, const Tensor& target, bool) {
  check_context();
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (!on_device(source)) count(kToDevice, target.numel() * target.element_size());
  if (!on_device(target)) count(kToHost, target.numel() * source.element_size());
  const auto host = [](const Tensor& tensor) { return on_device(tensor) ? host_view(tensor) : tensor; };
  host(target).copy_(host(source));
  return target;
}

at::Scalar item(const Tensor& self) {
  check_context();
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  count(kToHost, self.element_size());
  return host_view(self).item();
}

const Tensor& resize_(const Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(self.device());
  auto larger = at::detail::empty_generic(size, &memory(), kDeviceKeys, self.scalar_type(), format);
  const auto kept = std::min(self.nbytes(), larger.nbytes());
  if (kept > 0) std::memcpy(larger.mutable_data_ptr(), self.const_data_ptr(), kept);
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(larger.storage());
  impl->set_sizes_and_strides(larger.sizes(), larger.strides(), 0);
  return self;
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("resize_", resize_);
  m.impl("_copy_from", copy_from);
  m.impl("_local_scalar_dense", item);
  // These have a composite kernel, which torch prefers to the fallback.
  for (const char* name : {"convolution", "convolution_backward", "native_group_norm", "native_layer_norm"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
  }
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

#define LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define FULL_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  AT_FORALL_LOWER_PRECISION_FP(LOWER_PRECISION)
  AT_FORALL_FP32(FULL_PRECISION)
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  static Guard guard;
  static Hooks hooks;
  c10::impl::DeviceGuardImplRegistrar registered(kDevice, &guard);
  c10::SetAllocator(kDevice, &memory());
  at::RegisterPrivateUse1HooksInterface(&hooks);
  m.def("device_count", [] { return int{device_count()}; });
  m.def("seed", [](uint64_t seed) {
    for (DeviceIndex index = 0; index < kMaxDevices; ++index) {
      auto generator = default_generator(index);
      std::lock_guard lock(generator.mutex());
      generator.set_current_seed(seed);
    }
  });
  m.def("poison", [](bool value) { poisoned = value; });
  m.def("limit_memory", [](size_t bytes) {
    std::lock_guard lock(memory().mutex);
    memory().limit = bytes;
  });
  m.def("copies", [] {
    std::lock_guard lock(count_mutex);
    py::list rows;
    for (const auto& [key, found] : counts) {
      rows.append(py::make_tuple(key.first == kToDevice, key.second, found.copies, found.bytes));
    }
    return rows;
  });
}
