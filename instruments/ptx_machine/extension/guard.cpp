// The device guard of CUDA in a build of torch that has none: code that asks for "the current device" gets device 0.
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {
using c10::Device, c10::DeviceIndex, c10::DeviceType, c10::Stream;

struct OneDevice final : c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override { return DeviceType::CUDA; }
  Device getDevice() const override { return Device(DeviceType::CUDA, 0); }
  Device exchangeDevice(Device) const override { return getDevice(); }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  DeviceIndex deviceCount() const noexcept override { return 1; }
  Stream getStream(Device device) const override { return Stream(Stream::DEFAULT, device); }
  Stream getDefaultStream(Device device) const override { return Stream(Stream::DEFAULT, device); }
  Stream getStreamFromGlobalPool(Device device, bool) const override { return Stream(Stream::DEFAULT, device); }
  Stream exchangeStream(Stream stream) const override { return stream; }
};
}  // namespace

C10_REGISTER_GUARD_IMPL(CUDA, OneDevice)
